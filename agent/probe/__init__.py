"""The command `breezert probe`: how any WebRTC voice agent treats who speaks over it, measured from what was heard.

scenario    what a user does, and what is expected of the agent: read from YAML
prompter    when each step of it begins, by what `ear` hears; `mouth` says it
call        one call with one scenario, over a protocol of `dialect` and, if wanted, a `network` in trouble
recording   what came of it: packets, sounds, words, each with its instant
neteq       what a listener's jitter buffer makes of the packets, with `stretch`; `self_check` holds it to libwebrtc
measure     the figures of one recording, of what was `audible`
judge       what was found wrong, and whether the expectations held
run, load   all trials; peers for hours, with the `books` of a local server
report      JSON and one HTML page of all outcomes
"""
