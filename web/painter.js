// Paints a stretch of a History onto a canvas, lane by lane. Knows nothing of scrolling or of the server.

import { FRAME_MS, STAGES } from "./history.js";

/** The lanes from top to bottom: {top, height} in CSS pixels. Captions stand in the gaps above them. */
export const LANES = {
  made: { top: 22, height: 50 },
  arrows: { top: 72, height: 32 },
  played: { top: 104, height: 30 },
  ahead: { top: 162, height: 64 },
  engine: { top: 252, height: 90 },
  peers: { top: 370, height: 64 },
};
export const HEIGHT = 442;
export const HEIGHT_ALONE = 350; // without other calls
const MAX_PEERS = 16;
const STEP_HEIGHT = LANES.engine.height / STAGES.length;
const MARGIN_PX = 160; // how far a label reaches beyond what it belongs to
const DIGIT_PX = 6;

const growth = (frames) => (1 + Math.log2(Math.max(1, Math.min(16, frames)))) / 5;

export class Painter {
  #canvas;
  #scale;
  #colours;
  #words;
  #mostAhead;

  /** `x` in what follows: milliseconds times `scale`. `words(ms)` is the label of a cut; mostAhead: ms, the lane's top. */
  constructor(scale, colours, words, mostAhead) {
    [this.#scale, this.#colours, this.#words, this.#mostAhead] = [scale, colours, words, mostAhead];
  }

  /** Everything between two instants, anew. `origin`: the instant at the canvas's left edge; `seam`: the one at which
   * speech turns from ready to played. */
  paint(canvas, origin, history, from, to, seam = history.at) {
    const x = (at) => (at - origin) * this.#scale;
    const left = Math.floor(x(from)) - 1;
    const width = Math.ceil(x(to)) + 1 - left;
    const margin = MARGIN_PX / this.#scale;
    this.#canvas = canvas;
    canvas.save();
    canvas.beginPath();
    canvas.rect(left, 0, width, HEIGHT);
    canvas.clip();
    this.#box("field", left, 0, width, HEIGHT);
    this.#lanes(x, history, from - margin, to + margin, seam);
    canvas.restore();
  }

  #lanes(x, history, from, to, seam) {
    const within = (list, begin, end) => list.filter((each) => end(each) >= from && begin(each) <= to);
    const stretches = (list) => within(list, (each) => each.from, (each) => each.to);
    this.#grid(x, from, to);
    this.#ahead(x, history.levels, from, to);
    const chunks = within(history.chunks, ({ at }) => at, ({ at, due }) => Math.max(at, due ?? at));
    for (const chunk of chunks) this.#made(x, chunk);
    for (const stretch of stretches([...history.played, ...history.coming])) {
      if (stretch.from < seam) this.#stretch(x, { ...stretch, to: Math.min(seam, stretch.to) }, "played");
      if (stretch.to > seam) this.#stretch(x, { ...stretch, from: Math.max(seam, stretch.from) }, "ready");
    }
    for (const stretch of stretches(history.dropped)) this.#lost(x, stretch);
    for (const gap of stretches(history.gaps)) this.#gap(x, gap);
    for (const step of within(history.steps, ({ at }) => at, ({ at, ms }) => at + ms)) this.#step(x, step);
    for (const peer of stretches(history.peers)) this.#peer(x, peer, history.numbers);
    for (const cut of within(history.cuts, ({ at, ms }) => at - ms, ({ at }) => at)) this.#cut(x, cut);
  }

  /** A faint line each second, and the floors of the lanes. */
  #grid(x, from, to) {
    for (let at = Math.ceil(from / 1000) * 1000; at <= to; at += 1000)
      this.#box("grid", x(at), LANES.made.top, 1, HEIGHT - LANES.made.top);
    for (const { top, height } of [LANES.made, LANES.ahead])
      this.#box("floor", x(from), top + height, x(to) - x(from), 1);
  }

  /** A bar at its delivery, and a line from there to where it plays. */
  #made(x, { at, frames, due }) {
    if (at === null) return;
    const { top, height } = LANES.made;
    const tall = Math.max(6, growth(frames) * height);
    this.#box("made", x(at) - 2, top + height - tall, 4, tall, 1.5);
    if (due !== null) this.#line(due >= at - 100 ? "arrow" : "stutter", x(at), LANES.arrows.top, x(due), LANES.played.top);
  }

  #stretch(x, { from, to, chunk }, colour) {
    const { top, height } = LANES.played;
    const wide = Math.max(1, x(to) - x(from) - 1);
    const edge = colour === "ready" ? 0.5 : 0;
    this.#box(colour, x(from) + edge, top + edge, wide - 2 * edge, height - 2 * edge, Math.min(4, wide / 2));
    this.#pen("played"); // pale alone it would hardly differ from the ground
    if (edge) this.#canvas.stroke();
    const words = String(Math.round(chunk.frames));
    const middle = chunk.due + (chunk.frames * FRAME_MS) / 2; // of the chunk: it stays where it was painted
    const room = (DIGIT_PX * words.length + 5) / 2 / this.#scale; // on one colour, or it could not be read
    if (chunk.at !== null && from <= middle - room && middle + room <= to)
      this.#write(words, x(middle), top + height / 2 + 0.5, `on-${colour}`, 11, "center");
  }

  /** Made and never played: an empty outline, crossed out. */
  #lost(x, { from, to }) {
    const { top, height } = LANES.played;
    const wide = Math.max(1, x(to) - x(from) - 2);
    this.#pen("lost");
    this.#canvas.strokeRect(x(from) + 0.5, top + 0.5, wide, height - 1);
    this.#line("lost", x(from), top + height, x(from) + wide, top);
  }

  #gap(x, { from, to }) {
    const wide = Math.max(3, x(to) - x(from));
    this.#box("stutter", x(to) - wide, LANES.played.top - 4, wide, LANES.played.height + 8, 2);
    this.#box("stutter", x(to) - wide, LANES.ahead.top, wide, LANES.ahead.height);
  }

  #ahead(x, levels, from, to) {
    const { top, height } = LANES.ahead;
    const y = (ms) => top + height * (1 - Math.min(1, ms / this.#mostAhead));
    const first = Math.max(0, levels.findIndex(([at]) => at >= from) - 1);
    const shown = levels.slice(first).filter(([at], index) => index < 1 || at <= to + 200);
    if (shown.length < 2) return;
    const path = new Path2D();
    for (const [at, ms] of shown) path.lineTo(x(at), y(ms));
    const area = new Path2D(path);
    area.lineTo(x(shown.at(-1)[0]), y(0));
    area.lineTo(x(shown[0][0]), y(0));
    this.#canvas.fillStyle = this.#colours.area;
    this.#canvas.fill(area);
    this.#pen("ahead", 1.5);
    this.#canvas.stroke(path);
  }

  #cut(x, { at, ms }) {
    const { top, height } = LANES.played;
    this.#box("cut", x(at) - 1.5, top - 8, 3, height + 16, 1.5);
    this.#write(this.#words(ms), x(at) + 5, top - 9, "cut", 12, "left");
  }

  /** Taller for more calls; pale where it worked for others. */
  #step(x, { stage, at, ms, rows, mine }) {
    const index = STAGES.indexOf(stage);
    if (index < 0) return;
    const tall = (0.25 + 0.75 * growth(rows)) * (STEP_HEIGHT - 4);
    const bottom = LANES.engine.top + (index + 1) * STEP_HEIGHT - 1;
    this.#canvas.globalAlpha = mine ? 1 : 0.4;
    this.#box(stage, x(at), bottom - tall, Math.max(1.2, ms * this.#scale - 0.3), tall);
    this.#canvas.globalAlpha = 1;
  }

  #peer(x, { number, from, to, ms, kind }, numbers) {
    const lane = numbers.indexOf(number);
    if (lane < 0 || lane >= MAX_PEERS || ms <= 0) return;
    const tall = Math.min(8, LANES.peers.height / Math.max(1, Math.min(MAX_PEERS, numbers.length)));
    this.#canvas.globalAlpha = 0.25 + 0.5 * Math.min(1, ms / 1500);
    const [left, right] = [Math.round(x(from)), Math.round(x(to))]; // whole pixels: what is translucent must not overlap
    this.#box(kind === 2 ? "synthetic" : "peer", left, LANES.peers.top + lane * tall, right - left, Math.max(1, tall - 1));
    this.#canvas.globalAlpha = 1;
  }

  #write(words, x, y, colour, size, textAlign) {
    const [font, fillStyle] = [`600 ${size}px system-ui, sans-serif`, this.#colours[colour]];
    Object.assign(this.#canvas, { font, textAlign, textBaseline: "middle", fillStyle });
    this.#canvas.fillText(words, x, y);
  }

  #pen(colour, lineWidth = 1) {
    Object.assign(this.#canvas, { strokeStyle: this.#colours[colour], lineWidth });
  }

  #line(colour, fromX, fromY, toX, toY) {
    this.#pen(colour);
    this.#canvas.beginPath();
    this.#canvas.moveTo(fromX, fromY);
    this.#canvas.lineTo(toX, toY);
    this.#canvas.stroke();
  }

  #box(colour, left, top, width, height, radius = 0) {
    this.#canvas.fillStyle = this.#colours[colour];
    if (!radius) return this.#canvas.fillRect(left, top, width, height);
    this.#canvas.beginPath();
    this.#canvas.roundRect(left, top, width, height, radius);
    this.#canvas.fill();
  }
}
