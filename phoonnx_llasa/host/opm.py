"""The OpenVoiceOS plugin ``ovos-tts-plugin-phoonnx-llasa``.

Of ovos-plugin-manager's `StreamingTTS` the interface is kept, and what it makes of events and of
sentences. Its own streaming is not used: it saves bare bytes as WAV, keeps what a failure leaves,
never enters a stream into the cache, needs a player even where nothing is streamed, and cannot run
where an event loop runs already, as in ovos-tts-server.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

from ovos_bus_client.message import Message, dig_for_message
from ovos_bus_client.util import get_message_lang
from ovos_plugin_manager.templates.tts import TTS, StreamingTTS, TTSContext
from ovos_plugin_manager.utils.tts_cache import AudioFile, TextToSpeechCache, hash_sentence
from ovos_utils import classproperty
from ovos_utils.log import LOG

from phoonnx_llasa.errors import LlasaError
from phoonnx_llasa.host.ovos_voices import Request, VoiceChooser, read_settings
from phoonnx_llasa.host.playback import PlayerCallbacks, find_player
from phoonnx_llasa.wav import SoundWriter, destination, wav_header

#: Messages that silence OVOS.
_STOP_EVENTS: Final = ("mycroft.stop", "mycroft.audio.speech.stop")

#: Seconds between two looks at whether other sound has been played.
_POLL: Final = 0.05

#: Bytes of a file that are handed to the player at once: a second of 16 kHz sound.
_FILE_BLOCK: Final = 32_000
_WAV_HEADER_BYTES: Final = 44

_Listener = Callable[[bytes], None]


class _Stopped(Exception):  # noqa: N818  (it is no error)
    """Somebody wants silence."""


class LlasaTTSPlugin(StreamingTTS):  # type: ignore[misc]
    """Speaks for OVOS: in whole files, or with ``enable_streaming`` while the sound is made.

    The configuration is in docs/ovos.md. Neither start-up nor a wrong configuration fails: OVOS
    would be left without any voice. What is wrong is logged, and raised by every sentence, which
    OVOS's fallback plugin then speaks.
    """

    def __init__(self, config: Mapping[str, Any] | None = None, validator: Any = None) -> None:
        self.callbacks: Any = None
        self._chooser: VoiceChooser | None = None
        self._speaking = threading.Lock()
        self._stop_asked = threading.Event()
        self._turns = _Turns()
        self._making_caches = threading.Lock()
        super().__init__(config=config, validator=validator, audio_ext="wav")
        try:
            self._chooser = VoiceChooser(read_settings(self.config))
        except LlasaError as error:
            LOG.error(f"{self.tts_name} cannot speak: {error}")
        if self.config.get("preload"):
            threading.Thread(target=self._preload, name="llasa-preload", daemon=True).start()

    @classproperty  # type: ignore[untyped-decorator]
    def available_languages(cls) -> set[str]:  # noqa: N805
        """Languages of the catalogue; a folder of one's own may speak others."""
        return set(LlasaTTSPluginConfig)

    @property
    def available_voices(self) -> list[str]:
        """Names of the configured model's presets; none while it is missing."""
        try:
            return list(self._choices().main.files().voices.presets)
        except LlasaError as error:
            LOG.warning(f"no voices to list: {error}")
            return []

    def init(self, bus: Any = None, playback: Any = None, callbacks: Any = None) -> None:
        """Connect to OVOS: message bus, playback thread, and who gets streamed sound.

        Args:
            bus: OVOS's message bus; None for none.
            playback: ovos-audio's playback thread.
            callbacks: gets streams instead of a player program, as a `StreamingTTSCallbacks`. The
                first chunk of a stream is the header of a WAV, the others are its samples.
        """
        TTS.init(self, bus, playback)
        self.callbacks = callbacks
        if self.config.get("enable_streaming"):
            self.callbacks = callbacks or self._player_callbacks()
            for event in _STOP_EVENTS:
                self.bus.on(event, self._on_stop)

    def get_tts(
        self,
        sentence: str,
        wav_file: str,
        lang: str | None = None,
        voice: str | None = None,
    ) -> tuple[str, None]:
        """Speak into a WAV file, which appears when it is whole.

        Args:
            sentence: text.
            wav_file: path.
            lang: BCP 47 tag; None for the configured language.
            voice: a preset's name, "none", or a voice id; None leaves it to the language.

        Returns:
            The path, and no phonemes.

        Raises:
            LlasaError: the model is missing or broken, or there is no such voice.
            OSError: the file cannot be written.
        """
        self._write(sentence, self._request(lang, voice), Path(wav_file))
        return wav_file, None

    def synth(
        self, sentence: str, ctxt: TTSContext | None = None, **kwargs: Any
    ) -> tuple[AudioFile, None]:
        """The file of a sentence, from the cache or spoken now.

        Requests for the same sound at the same time wait for one synthesis.

        Raises:
            LlasaError: as for `get_tts`; nothing is left in the cache.
        """
        self.add_metric({"metric_type": "tts.synth.start"})
        return self._obtain(sentence, ctxt or self._get_ctxt(kwargs)), None

    async def stream_tts(
        self, sentence: str, lang: str | None = None, voice: str | None = None
    ) -> AsyncIterator[bytes]:
        """The bytes of a WAV as they are made: the header alone, then samples.

        The event loop goes on meanwhile. Nothing is saved.

        Raises:
            LlasaError: as for `get_tts`.
        """
        sound = self._stream(sentence, lang, voice)
        loop = asyncio.get_running_loop()
        worker = ThreadPoolExecutor(1, thread_name_prefix="llasa-stream")
        try:
            while chunk := await loop.run_in_executor(worker, next, sound, b""):
                yield chunk
        finally:
            # In the same thread, so that it waits for a step that is being worked on.
            worker.submit(sound.close)
            worker.shutdown(wait=False)

    async def generate_audio(
        self,
        sentence: str,
        wav_file: str,
        play_streaming: bool = True,
        listen: bool = False,
        message: Any = None,
        plugin_kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        """Speak into a WAV file and, with ``play_streaming``, to whoever gets streams.

        Raises:
            LlasaError: as for `get_tts`, or the player failed; there is no file then.
        """
        stopped = threading.Event()
        callbacks = self.callbacks if play_streaming else None
        request = self._request(**(plugin_kwargs or {}))

        def work() -> None:
            if callbacks is None:
                self._write(sentence, request, Path(wav_file), stopped=stopped)
                return
            with _stream_to(callbacks, message, listen=listen) as listener:
                self._write(sentence, request, Path(wav_file), listener, stopped)

        try:
            await asyncio.to_thread(work)
        finally:
            stopped.set()
        return wav_file

    def stop(self) -> None:
        """End what is being spoken, and OVOS's playback."""
        self.stop_streaming()
        super().stop()

    def shutdown(self) -> None:
        """Let go of OVOS. Its playback thread goes on: the plugin that comes next needs it."""
        self.stop_streaming()
        if self.bus is not None:
            for event in _STOP_EVENTS:
                self.bus.remove(event, self._on_stop)

    def __del__(self) -> None:
        # The base class ends the playback of whoever speaks by now.
        pass

    def stop_streaming(self) -> bool:
        """Silence a stream, from any thread. The model stops behind its next block.

        Returns:
            Whether there was one.
        """
        if not self._speaking.locked():
            return False
        self._stop_asked.set()
        abort = getattr(self.callbacks, "abort", None)
        if abort is not None:
            abort()
        return True

    def _on_stop(self, message: Any) -> None:
        # ovos-audio knows of what its own thread plays only.
        if self.stop_streaming():
            self.bus.emit(message.forward("mycroft.stop.handled", {"by": "TTS"}))

    def _player_callbacks(self) -> PlayerCallbacks | None:
        try:
            command = find_player(self.config.get("player"))
        except LlasaError as error:
            LOG.error(f"speech is played when it is whole, not streamed: {error}")
            return None
        if command is None:
            LOG.error(
                "speech is played when it is whole, not streamed: there is no ffplay, paplay or "
                "aplay (packages ffmpeg, pulseaudio-utils, alsa-utils), and no "
                '"player" in the plugin\'s configuration'
            )
            return None
        return PlayerCallbacks(self.bus, command, self.config)

    def _preload(self) -> None:
        try:
            self._choices().preload(self.lang)
        except Exception as error:  # noqa: BLE001  (the first sentence will say it again)
            LOG.error(f"{self.tts_name} could not load its model: {error}")

    def _choices(self) -> VoiceChooser:
        if self._chooser is None:
            self._chooser = VoiceChooser(read_settings(self.config))
        return self._chooser

    def _request(self, lang: str | None = None, voice: str | None = None) -> Request:
        return self._choices().choose(lang or self.lang, voice)

    def _get_ctxt(self, kwargs: dict[str, Any] | None = None) -> TTSContext:
        """What identifies a sound besides its text: who speaks, and how.

        Raises:
            LlasaError: as for `get_tts`.
        """
        wanted = dict(kwargs or {})
        # The base class would pass the configured voice off as the request's, whatever the
        # language, and knows no language of the message's own.
        wanted.setdefault("voice", "default")
        message = wanted.get("message") or dig_for_message()
        wanted["lang"] = wanted.get("lang") or _language_of(message) or self.lang
        ctxt = super()._get_ctxt(wanted)
        request = self._request(**ctxt.synth_kwargs)
        ctxt.voice, ctxt.lang = request.identity, request.lang
        return ctxt

    def _execute(self, sentence: str, ident: Any, listen: bool, **kwargs: Any) -> None:
        if not (self.config.get("enable_streaming") and self.callbacks):
            TTS._execute(self, sentence, ident, listen, **kwargs)
            return
        ctxt = self._get_ctxt(kwargs)
        sentence = self._replace_phonetic_spellings(sentence, ctxt.lang)
        self.add_metric({"metric_type": "tts.preprocessed"})
        message = (
            kwargs.get("message")
            or dig_for_message()
            or Message("speak", context={"session": {"session_id": ident}})
        )
        with self._speaking:
            self._stop_asked.clear()
            self.add_metric({"metric_type": "tts.stream.start"})
            try:
                if isinstance(self.callbacks, PlayerCallbacks):
                    self._wait_for_other_sound()
                with _stream_to(self.callbacks, message, listen=listen) as listener:
                    self._obtain(sentence, ctxt, listener)
            except _Stopped:
                LOG.info("speech was stopped")
            finally:
                self.add_metric({"metric_type": "tts.stream.end"})

    def _wait_for_other_sound(self) -> None:
        """Let finish what was queued before: a sound, or a sentence of the fallback plugin."""
        playback = TTS.playback
        while playback is not None and playback.is_alive():
            playing = getattr(playback, "_now_playing", None)
            if TTS.queue.empty() and playing is None:
                return
            if self._stop_asked.is_set():
                raise _Stopped
            time.sleep(_POLL)

    def _obtain(
        self, sentence: str, ctxt: TTSContext, listener: _Listener | None = None
    ) -> AudioFile:
        """The file of a sentence; who listens gets it too, while it is made."""
        key = hash_sentence(sentence)
        with self._turns.take(f"{ctxt.tts_id}/{key}"):
            cache = self._cache(ctxt)
            if self.enable_cache and key in cache:
                audio: AudioFile = cache.cached_sentences[key][0]
                if listener is not None:
                    _replay(audio.path, listener, self._stop_asked)
                self.add_metric({"metric_type": "tts.synth.finished", "cache": True})
                return audio
            request = self._request(**ctxt.synth_kwargs)
            audio = cache.define_audio_file(key)
            audio.path.parent.mkdir(parents=True, exist_ok=True)
            stopped = self._stop_asked if listener is not None else None
            whole = self._write(sentence, request, audio.path, listener, stopped)
            self.add_metric({"metric_type": "tts.synth.finished"})
            if not whole and not request.seeded:
                # The next try may go better. Out of the way of a cache that is read at start-up.
                cut = AudioFile(cache.temporary_cache_dir, f"{key}-cut", self.audio_ext)
                audio.path.replace(cut.path)
                return cut
            if self.enable_cache:
                self._cache_sentence(sentence, ctxt.lang, audio, cache, None, key)
            return audio

    def _cache(self, ctxt: TTSContext) -> TextToSpeechCache:
        config = self.config
        if config.get("persist_cache") and (folder := config.get("preloaded_cache")):
            # In one folder the voices would overwrite each other's sentences.
            config = {**config, "preloaded_cache": str(Path(folder) / ctxt.tts_id)}
        with self._making_caches:  # or two threads make one each, and one forgets its sentences
            return ctxt.get_cache(self.audio_ext, config)

    def _write(
        self,
        sentence: str,
        request: Request,
        path: Path,
        listener: _Listener | None = None,
        stopped: threading.Event | None = None,
    ) -> bool:
        """Speak into a file, and to who listens.

        Returns:
            Whether all of it was spoken, as far as one can tell.
        """
        truncated = False
        rate, chunks = request.speak(sentence)
        with destination(path) as stream, closing(chunks):
            writer = SoundWriter(stream, rate)
            if stopped is not None and stopped.is_set():
                raise _Stopped
            if listener is not None:
                listener(wav_header(rate, None))
            for chunk in chunks:
                if stopped is not None and stopped.is_set():
                    raise _Stopped
                samples = chunk.audio_int16_bytes
                writer.write(samples)
                if listener is not None:
                    listener(samples)
                truncated |= chunk.truncated
            writer.finish()
        if truncated:
            LOG.warning(f"the model did not come to an end by itself in {sentence!r}")
        return not truncated

    def _stream(
        self, sentence: str, lang: str | None, voice: str | None
    ) -> Generator[bytes, None, None]:
        rate, chunks = self._request(lang, voice).speak(sentence)
        with closing(chunks):
            yield wav_header(rate, None)
            for chunk in chunks:
                if samples := chunk.audio_int16_bytes:
                    yield samples


def _language_of(message: Any) -> str | None:
    """The language that a message is in, if it says so."""
    if message is None or not ({"lang", "session"} & {*message.data, *message.context}):
        return None
    lang: str = get_message_lang(message)
    return lang


@contextmanager
def _stream_to(callbacks: Any, message: Any, *, listen: bool) -> Iterator[_Listener]:
    """Hand a stream to OVOS's callbacks, which hear of its end however it ends.

    They hear of its start with the first chunk: what cannot be spoken is not announced, and
    nothing is silenced while a model loads. Leaves when everything is played.
    """
    started = done = False

    def listener(chunk: bytes) -> None:
        nonlocal started
        if not started:
            callbacks.stream_start(message)
            started = True
        callbacks.stream_chunk(chunk)

    try:
        yield listener
        done = True
    finally:
        if started and not done and (abort := getattr(callbacks, "abort", None)):
            abort()
        if started:
            callbacks.stream_stop(listen and done, message)


def _replay(path: Path, listener: _Listener, stopped: threading.Event) -> None:
    with path.open("rb") as file:
        block = file.read(_WAV_HEADER_BYTES)
        while block:
            if stopped.is_set():
                raise _Stopped
            listener(block)
            block = file.read(_FILE_BLOCK)


class _Turns:
    """One lock per key that somebody holds or waits for."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._locks: dict[str, tuple[threading.Lock, int]] = {}

    @contextmanager
    def take(self, key: str) -> Iterator[None]:
        """Wait for one's turn."""
        with self._lock:
            lock, users = self._locks.get(key, (threading.Lock(), 0))
            self._locks[key] = lock, users + 1
        try:
            with lock:
                yield
        finally:
            with self._lock:
                lock, users = self._locks.pop(key)
                if users > 1:
                    self._locks[key] = lock, users - 1


def _voice_config(model: str, display_name: str, preset: str = "") -> dict[str, Any]:
    return {
        "model": model,
        **({"preset": preset} if preset else {}),
        "display_name": display_name,
        "offline": True,
        "priority": 60,
    }


#: Configurations to choose from in OVOS's settings, by language.
LlasaTTSPluginConfig: Final = {
    "en-US": [
        _voice_config("llasa/demo/en/tiny", "Llasa demo"),
        _voice_config("llasa/HKUST/en/1b", "Llasa-1B female (CC BY-NC 4.0)", "en_female_a"),
        _voice_config("llasa/HKUST/en/1b", "Llasa-1B male (CC BY-NC 4.0)", "en_male_a"),
    ],
    "zh-CN": [
        _voice_config("llasa/HKUST/zh/1b", "Llasa-1B female (CC BY-NC 4.0)", "zh_female_a"),
        _voice_config("llasa/HKUST/zh/1b", "Llasa-1B male (CC BY-NC 4.0)", "zh_male_a"),
    ],
}
