// The data channel's messages: the same table as agent/protocol.py, kept equal by a test. Knows nothing of calls.
// Both tables are plain JSON (a test reads them); a field that may be left out ends in "?".

export const CHANNEL = "breezert";
export const MAX_MESSAGE_BYTES = 65536;

const CLIENT = {
  "speak": [
    "id", "text", "speaker?", "instruction?", "seed?", "temperature?", "language?", "voice?", "cfg_scale?", "open?"
  ],
  "session.update": ["speaker?", "language?", "instruction?", "voice?", "cfg_scale?"],
  "text.append": ["id", "text"],
  "text.done": ["id"],
  "voice.create": ["id", "text", "audio"],
  "stop": [],
  "say": ["text"],
  "stats": [
    "jitter_buffer_delay?", "jitter_buffer_emitted_count?", "concealed_samples?", "silent_concealed_samples?",
    "total_samples_received?", "packets_lost?", "jitter?", "round_trip_time?"
  ],
  "watch": ["on"],
  "demo": ["load?", "policy?", "loss?", "jitter_ms?"],
  "ping": ["t?"]
};

const SERVER = {
  "session.created": [
    "id", "voice", "licence", "sample_rate", "modes", "max_text_chars", "max_queued", "speakers?", "voices?",
    "open_text?", "languages?", "recordings?"
  ],
  "voice.created": ["id", "voice", "seconds"],
  "speech.queued": ["id", "wait_ms"],
  "speech.started": ["id", "ttfa_ms", "heard_ms?"],
  "speech.progress": ["id", "heard_ms", "buffered_ms", "underruns"],
  "speech.underrun": ["id", "heard_ms", "missed_ms", "underruns"],
  "speech.paused": ["id", "heard_ms"],
  "speech.continued": ["id", "heard_ms"],
  "speech.silenced": ["flush_ms", "wire_ms", "turn_ms?"],
  "speech.stopped": ["id", "reason", "heard_ms", "sent_ms", "heard?", "underruns?"],
  "turn.started": [],
  "turn.stopped": [],
  "turn.ended": ["seconds"],
  "turn.text": ["text"],
  "reply.started": ["id"],
  "reply.text": ["id", "text"],
  "reply.ended": ["id", "reason", "heard"],
  "view": ["at", "heard_ms", "buffered_ms", "playing?", "chunks?", "steps?", "peers?", "calls?"],
  "speech.waterfall": [
    "id", "queued_ms", "text_ms", "prefill_ms", "decode_ms", "depth_ms", "codec_ms", "waited_ms", "delivered_ms",
    "playout_ms"
  ],
  "demo.state": ["load", "max_load", "policy", "policies", "loss", "jitter_ms"],
  "error": ["code", "message", "id?", "event?", "field?", "retry_after_ms?"],
  "pong": ["t?"]
};

/** The JSON text of one client message. Throws on a type or field that the table lacks, on a missing one, on size. */
export function encode(type, fields = {}) {
  check(CLIENT[type], type, fields);
  const text = JSON.stringify({ type, ...fields });
  const size = new TextEncoder().encode(text).length;
  if (size > MAX_MESSAGE_BYTES) throw new RangeError(`a message holds at most ${MAX_MESSAGE_BYTES} bytes, got ${size}`);
  return text;
}

/** One server message, or null where its type is unknown: a newer server may say more than this page understands. */
export function decode(text) {
  const { type, ...fields } = JSON.parse(text);
  if (!Object.hasOwn(SERVER, type)) return null;
  const missing = required(SERVER[type]).filter((name) => !(name in fields));
  if (missing.length) throw new TypeError(`${type} lacks ${missing.join(", ")}`);
  return { type, ...fields };
}

function check(names, type, fields) {
  if (!names) throw new TypeError(`no client message is called ${type}`);
  const known = names.map((name) => name.replace("?", ""));
  const wrong = Object.keys(fields).filter((name) => !known.includes(name));
  const missing = required(names).filter((name) => fields[name] === undefined);
  if (wrong.length || missing.length) throw new TypeError(`${type}: unknown ${wrong}, missing ${missing}`);
}

function required(names) {
  return names.filter((name) => !name.endsWith("?"));
}
