// What happened in the last half minute, from the server's views of it: what was made, when it was due, when it played.
// Pure: instants are milliseconds of the server's clock. Knows nothing of canvases.

export const FRAME_MS = 80; // of audio in a frame
export const STAGES = ["text", "prefill", "decode", "depth", "codec"];
const KEPT_MS = 32_000;
const SNAP_MS = 60; // views come evenly, each a little early or late: what lies closer is one stretch

/**
 * chunks: {id, at, frames, slack, due}, due: when its playing begins. Stretches of speech, each {from, to, chunk}:
 * played; coming: what is ready, where it will play; dropped: where it would have played. steps: {stage, at, ms, rows,
 * mine}. levels: [at, ms ready ahead]. gaps: {from, to}. cuts: {at, ms}. peers: {number, from, to, ms, kind}.
 */
export class History {
  chunks = [];
  steps = [];
  played = [];
  coming = [];
  dropped = [];
  levels = [];
  gaps = [];
  cuts = [];
  peers = [];
  numbers = []; // of the other calls that are shown, in the order of their lanes
  calls = 0; // how many others there are
  at = null; // of the last view
  buffered = 0; // milliseconds, then
  #waiting = []; // {chunk, left}: what is ready, in the order in which it plays
  #still = false; // what was ready had not moved, in the last view: it is paused

  /** The instant at which what is ready will have been played. */
  get deadline() {
    return this.at + this.buffered;
  }

  /** The spare time of the next chunk, in ms, as the engine predicts it; null where none is to come. */
  get slack() {
    return this.buffered > 0 ? (this.chunks.at(-1)?.slack ?? null) : null;
  }

  /** Takes one view. Returns [from, to]: between these instants something looks different now. */
  take({ at, buffered_ms: buffered, chunks = [], steps = [], peers = [], calls = 0 }) {
    const before = Math.min(this.at ?? at - 100, at);
    const oldEnd = this.coming.at(-1)?.to ?? before;
    const wasReady = this.#left > 0;
    for (const [id, when, frames, slack] of chunks) this.#add({ id, at: when, frames, slack, due: null });
    for (const [stage, when, ms, rows, mine] of steps) this.steps.push({ stage, at: when, ms, rows, mine });
    const surplus = buffered - this.#left;
    if (surplus > 1) this.#waiting.unshift({ chunk: unseen(surplus / FRAME_MS), left: surplus });
    const playing = Math.max(0, -surplus);
    this.#still = wasReady && playing < 1;
    this.#measure(before, at, buffered, playing);
    this.#play(before, at, playing);
    this.at = at;
    this.buffered = buffered;
    this.calls = calls;
    this.#lay();
    const moved = this.#watch(before, at, peers);
    this.#forget(at - KEPT_MS);
    if (moved) return [-Infinity, Infinity];
    const first = Math.min(before - SNAP_MS, ...chunks.map(([, when]) => when), ...steps.map(([, when]) => when));
    return [first, Math.max(oldEnd, this.coming.at(-1)?.to ?? at)];
  }

  /** The utterance is over at that instant: what is ready of it is never played. Returns what take() does. */
  drop(id, at) {
    if (this.at === null) return [at, at];
    const end = this.coming.at(-1)?.to ?? at;
    const now = Math.max(at, this.at);
    if (!this.#still) this.#play(this.at, now, Math.min(now - this.at, this.#left));
    this.#lay(now);
    const lost = this.coming.filter(({ chunk }) => chunk.id === id || chunk.id === "");
    this.dropped.push(...lost);
    this.#waiting = this.#waiting.filter(({ chunk }) => chunk.id !== id && chunk.id !== "");
    this.levels.push([now, 0]);
    [this.at, this.buffered] = [now, this.#left];
    this.#lay();
    return [now - SNAP_MS, end];
  }

  /** It was silent for so long before that instant, inside speech. */
  stutter(at, ms) {
    this.gaps.push({ from: at - ms, to: at });
    return [at - ms, at];
  }

  /** It fell silent then, which took so long. */
  cut(at, ms) {
    this.cuts.push({ at, ms });
    return [at - ms, at + 4_500]; // with its label
  }

  /** The call is over. */
  end() {
    this.#waiting = [];
    this.buffered = 0;
  }

  /** The batch size of the newest step of a stage, 0 where it has not run for a second. */
  rows(stage) {
    const step = this.steps.findLast((each) => each.stage === stage);
    return step && this.at - step.at < 1000 ? step.rows : 0;
  }

  get #left() {
    return this.#waiting.reduce((sum, { left }) => sum + left, 0);
  }

  #add(chunk) {
    this.chunks.push(chunk);
    this.#waiting.push({ chunk, left: chunk.frames * FRAME_MS });
  }

  /** So many ms of what is ready were played between the two instants: up to the end, where there is more of it. */
  #play(before, at, ms) {
    if (ms <= 0) return;
    const last = this.played.at(-1);
    const goesOn = last && before - last.to < SNAP_MS;
    const ends = this.#left - ms > 1;
    let from = goesOn && !ends ? last.to : at - ms;
    if (goesOn && Math.abs(from - last.to) < SNAP_MS) from = last.to;
    const stretch = (ends ? at - from : Math.min(ms, at - from)) / ms;
    for (let rest = ms; rest > 0 && this.#waiting.length; ) {
      const [next] = this.#waiting;
      const taken = Math.min(rest, next.left);
      from = this.#playPart(next.chunk, from, from + taken * stretch);
      rest -= taken;
      next.left -= taken;
      if (next.left < 0.5) this.#waiting.shift();
    }
  }

  #playPart(chunk, from, to) {
    const last = this.played.at(-1);
    if (last?.chunk === chunk && from - last.to < 1) last.to = to;
    else this.played.push({ from, to, chunk });
    if (!chunk.begun) Object.assign(chunk, { begun: true, due: from });
    return to;
  }

  #lay(from = this.at) {
    let at = from;
    this.coming = this.#waiting.map(({ chunk, left }) => {
      if (!chunk.begun) chunk.due = at;
      return { from: at, to: (at += left), chunk };
    });
  }

  /** The level between two views, backwards from the second: down with playing, up with each chunk. */
  #measure(before, at, buffered, playing) {
    const slope = at > before ? Math.min(1, playing / (at - before)) : 0;
    const points = [[at, buffered]];
    let [then, level] = points[0];
    for (const chunk of this.chunks.filter((each) => each.at > before && each.at <= at).toReversed()) {
      level += slope * (then - chunk.at);
      then = chunk.at;
      points.unshift([then, Math.max(0, level - chunk.frames * FRAME_MS)], [then, level]);
      level = points[0][1];
    }
    this.levels.push(...points);
  }

  /** Returns whether the lanes of the others have changed places. */
  #watch(before, at, peers) {
    const were = this.numbers.join();
    for (const [number, ms, kind] of peers) {
      if (!this.numbers.includes(number)) this.numbers = [...this.numbers, number].sort((one, other) => one - other);
      this.peers.push({ number, from: before, to: at, ms, kind });
    }
    const there = peers.map(([number]) => number);
    this.numbers = this.numbers.filter((number) => there.includes(number));
    return this.numbers.join() !== were;
  }

  #forget(until) {
    const keep = (list, end) => {
      let old = 0;
      while (old < list.length && end(list[old]) < until) old++;
      list.splice(0, old);
    };
    keep(this.levels, ([at]) => at);
    for (const list of [this.chunks, this.steps, this.cuts]) keep(list, ({ at }) => at);
    for (const list of [this.played, this.dropped, this.gaps, this.peers]) keep(list, ({ to }) => to);
  }
}

/** What was made before anybody watched. */
function unseen(frames) {
  return { id: "", at: null, frames, slack: null, due: null };
}
