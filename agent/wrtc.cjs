// Holds one call as libwebrtc for wrtc.py: what comes out of its jitter buffer, block by block, and a microphone.
// It judges nothing and knows HTTP as little as the text of messages: offer, answer and orders are JSON lines on
// standard input and output. Usage: node wrtc.cjs FOLDER LABEL NOISE RECORD, FOLDER with the package in node_modules.
// All instants are seconds of the monotonic clock. It ends when standard input does.

const { createRequire } = require("node:module");
const { createInterface } = require("node:readline");

const [folder, label, noise, record] = process.argv.slice(2);
const { RTCPeerConnection, nonstandard } = createRequire(`${folder}/`)("@roamhq/wrtc");

const RATE = 48_000;
const BLOCK_SAMPLES = RATE / 100;
const BLOCK_SECONDS = 0.01;
const MAX_BEHIND = 6; // blocks: a longer stall moves the microphone's anchor, a shorter one is caught up
const BLOCKS_A_LINE = 5;
const EVERY_MS = 1_000;

const now = () => Number(process.hrtime.bigint()) / 1e9;
const write = (line) => process.stdout.write(`${JSON.stringify(line)}\n`);

const peer = new RTCPeerConnection({ iceServers: [] });
const source = new nonstandard.RTCAudioSource();
const transceiver = peer.addTransceiver(source.createTrack(), { direction: "sendrecv" });
const channel = peer.createDataChannel(label);

// ---- what is heard ---------------------------------------------------------------------------------------------

let blocks = [];
let sounds = [];

const sink = new nonstandard.RTCAudioSink(transceiver.receiver.track);
sink.ondata = ({ samples, sampleRate, channelCount }) => {
  const at = now();
  let peak = 0;
  for (const sample of samples) peak = Math.max(peak, Math.abs(sample));
  blocks.push([at, peak / 32768]);
  if (record === "true") sounds.push(mono(samples, sampleRate, channelCount));
  if (blocks.length === BLOCKS_A_LINE) flush();
};

/**
 * The first channel, at RATE. Before the first packet NetEQ gives silence at a rate of its own, and the block into which
 * that packet falls may still be at it: the mixer had chosen the rate before. Its samples are repeated.
 */
function mono(samples, sampleRate, channelCount) {
  const first = (index) => channelCount * Math.floor((index * sampleRate) / RATE);
  return Buffer.from(new Int16Array(BLOCK_SAMPLES).map((_, index) => samples[first(index)]).buffer);
}

/** Before anything else is said: whoever reads a line has the blocks that were heard before it. */
function flush() {
  if (!blocks.length) return;
  write({ blocks, pcm: Buffer.concat(sounds).toString("base64") });
  blocks = [];
  sounds = [];
}

function tell(line) {
  flush();
  write(line);
}

channel.onmessage = ({ data }) => tell({ message: { ...JSON.parse(data), at: now() } });
channel.onclose = () => tell({ over: "the server ended the call" });
peer.onconnectionstatechange = () => {
  if (peer.connectionState === "failed") tell({ over: "no packets come through: is UDP blocked?" });
};

// ---- the microphone --------------------------------------------------------------------------------------------

const queue = []; // of {order, pcm, played}
let seed = 1; // the same noise in every call: a Lehmer generator
const random = () => (seed = (seed * 16807) % 2147483647) / 2147483647;
const hiss = Int16Array.from({ length: RATE }, () => Math.round((2 * random() - 1) * 32767 * Number(noise)));
let due = now();
let count = 0;
let stalls = 0;

/** Hands over what is due. Counted from an anchor: a timer that is late makes no block late but its own. */
function tick() {
  if (now() - due > MAX_BEHIND * BLOCK_SECONDS) {
    due = now();
    stalls += 1;
  }
  for (; due <= now(); due += BLOCK_SECONDS) handOver();
  setTimeout(tick, Math.ceil((due - now()) * 1000));
}

function handOver() {
  const first = (count++ * BLOCK_SAMPLES) % RATE;
  const samples = hiss.slice(first, first + BLOCK_SAMPLES);
  const [said] = queue;
  if (said) samples.set(said.pcm.subarray(said.played, said.played + BLOCK_SAMPLES));
  const at = now();
  source.onData({ samples, sampleRate: RATE, bitsPerSample: 16, channelCount: 1, numberOfFrames: BLOCK_SAMPLES });
  if (!said) return;
  if (!said.played) tell({ order: said.order, value: at });
  said.played += BLOCK_SAMPLES;
  if (said.played >= said.pcm.length) queue.shift();
}

// ---- statistics (https://www.w3.org/TR/webrtc-stats/) ------------------------------------------------------------

async function inbound(report) {
  const all = [...(report ?? (await peer.getStats())).values()];
  return all.find((entry) => entry.type === "inbound-rtp" && entry.kind === "audio") ?? {};
}

/** As the page does every second: a ping, and what the receiver knows. */
async function report() {
  if (channel.readyState !== "open") return;
  channel.send(JSON.stringify({ type: "ping", t: 1000 * now() }));
  const stats = await peer.getStats();
  const audio = await inbound(stats);
  const pair = [...stats.values()].find((entry) => entry.type === "candidate-pair" && entry.nominated);
  const fields = {
    jitter_buffer_delay: audio.jitterBufferDelay,
    jitter_buffer_emitted_count: audio.jitterBufferEmittedCount,
    concealed_samples: audio.concealedSamples,
    silent_concealed_samples: audio.silentConcealedSamples,
    total_samples_received: audio.totalSamplesReceived,
    packets_lost: audio.packetsLost,
    jitter: audio.jitter,
    round_trip_time: pair?.currentRoundTripTime,
  };
  if (channel.readyState === "open") channel.send(JSON.stringify({ type: "stats", ...fields }));
  tell({ report: { ...audio, at: now(), microphoneStalls: stalls } });
}

// ---- orders ----------------------------------------------------------------------------------------------------

const orders = {
  async accept({ sdp }) {
    await peer.setRemoteDescription({ type: "answer", sdp });
    due = now();
    tick();
    setInterval(report, EVERY_MS);
    return transceiver.currentDirection;
  },
  send({ message }) {
    const at = now();
    channel.send(JSON.stringify(message));
    return at;
  },
  stats: () => inbound(),
};

async function take(line) {
  const { do: what, order, ...rest } = JSON.parse(line);
  if (what === "say") return speak(order, rest.pcm);
  try {
    tell({ order, value: await orders[what](rest) });
  } catch (error) {
    tell({ order, error: error.message });
  }
}

/** It is answered when its first sample was handed over. */
function speak(order, base64) {
  const bytes = Buffer.from(base64, "base64");
  queue.push({ order, pcm: new Int16Array(Uint8Array.from(bytes).buffer), played: 0 });
}

createInterface({ input: process.stdin }).on("line", take).on("close", () => {
  peer.close();
  process.exit(0); // libwebrtc's threads would keep the process
});

(async () => {
  await peer.setLocalDescription(await peer.createOffer()); // no waiting for candidates: the server learns ours
  tell({ offer: peer.localDescription.sdp });
})();
