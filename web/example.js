// A made-up call for those who have not called yet: views as a server would send them. Nothing in it was measured.

import { FRAME_MS, History } from "./history.js";

const EVERY_MS = 100;
const FRAME_COST_MS = 34; // to make one frame
const CODEC_MS = 22;
const SIZES = [1, 2, 4, 8, 16];

/** [history, at]: a reply, an interruption, and the beginning of the next reply. */
export function example() {
  const history = new History();
  const end = 20_000;
  const replies = [
    { id: "a", from: 1_500, frames: 70 },
    { id: "b", from: 9_500, frames: 60, cut: 12_900 },
    { id: "c", from: 15_600, frames: 110 },
  ];
  const events = replies.map(made);
  let ends = replies.map(() => 0); // of what is ready of each
  for (let at = 0; at <= end; at += EVERY_MS) {
    const fresh = (list, instant) => list.filter((each) => instant(each) > at - EVERY_MS && instant(each) <= at);
    for (const { id, cut } of replies)
      if (cut > at - EVERY_MS && cut <= at) history.drop(id, cut), history.cut(cut, 46);
    const alive = events.filter((_, index) => !(replies[index].cut < at));
    const chunks = alive.flatMap(({ chunks }) => fresh(chunks, ([, when]) => when));
    for (const [id, when, frames] of chunks) {
      const index = replies.findIndex((reply) => reply.id === id);
      ends = ends.with(index, Math.max(ends[index], when + 20) + frames * FRAME_MS);
    }
    const left = replies.map(({ cut }, index) => (cut <= at ? 0 : Math.max(0, ends[index] - at)));
    const steps = alive.flatMap(({ steps }) => fresh(steps, ([, when]) => when));
    history.take({ at, chunks, steps, heard_ms: 0, buffered_ms: Math.max(...left), peers: [] });
  }
  return [history, end];
}

/** The chunks and steps of one reply, as fast as a small machine makes them, at most 3 s ahead of its listener. */
function made({ id, from, frames }) {
  const chunks = [];
  const steps = [["text", from, 20, 1, 1], ["prefill", from + 25, 45, 1, 1]];
  let at = from + 75;
  let heardUntil = at;
  for (let done = 0, index = 0; done < frames; index++) {
    const size = Math.min(SIZES[Math.min(index, 4)], frames - done);
    at = Math.max(at, heardUntil - 3_000);
    for (let frame = 0; frame < size; frame++) {
      steps.push(["decode", at, 10, 1, 1], ["depth", at + 11, 22, 1, 1]);
      at += FRAME_COST_MS;
    }
    steps.push(["codec", at, CODEC_MS, 1, 1]);
    at += CODEC_MS;
    done += size;
    heardUntil = Math.max(heardUntil, at) + size * FRAME_MS;
    const next = SIZES[Math.min(index + 1, 4)] * FRAME_COST_MS + CODEC_MS;
    chunks.push([id, at, size, done < frames ? heardUntil - at - next : null]);
  }
  return { chunks, steps };
}
