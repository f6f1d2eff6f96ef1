"""What can be found wrong with an agent's audio, by name, and what each means. It does not know how any is found."""

from __future__ import annotations

FINDINGS = {
    "zero_padding": "The server filled up speech with silence: it ran out of audio in the midst of it. No jitter "
    "buffer counts that as concealment.",
    "long_packets": "Packets are longer than 20 ms: all of a packet has to be there before it can be sent, and a stop "
    "waits for its end.",
    "late_stop": "Sound goes on after the agent is said to have stopped, or long after it was to stop.",
    "stale_audio": "After it had stopped for the user, the agent let out what was left of the old reply.",
    "clock_drift": "The server sends faster or slower than its timestamps say: the listener's buffer has to stretch "
    "the voice, and runs over or dry.",
    "cut_start": "The beginning of the reply is missing.",
    "gap": "The listener's buffer had nothing to play in the midst of speech, and had to guess.",
    "irregular_pacing": "Packets do not come at the pace of what they hold: the listener's buffer has to grow, and "
    "every stop comes later by that.",
    "wrong_timestamps": "Timestamps do not fit the packets' lengths, although nothing was lost and nobody had paused.",
    "overclaimed_heard": "The server says that more of its speech was heard than came out at the listener.",
    "no_answer": "Nothing came where an answer was expected.",
    "lost_call": "The call could not be made, or ended before it was over.",
}
"""What can be found, by name, and what it means."""
