// Measures inside the page for browser.py: samples in the audio thread, packets in a worker, messages and clicks; of a
// microphone the blocks of the track that is sent, as the sender gets them, behind the browser's own processing.
// Injected before the page's own scripts, which know nothing of it; it leaves them as they are and only listens.
// All instants are milliseconds since 1970, so that threads can be compared.

(() => {
  const gathered = () => ({ peaks: [], spoken: [], packets: [], messages: [], clicks: [] });
  const probe = { ...gathered(), watchPackets: false, peer: null, channel: null };
  Object.defineProperty(globalThis, "probe", { value: probe });

  /** Everything gathered since the last call. */
  probe.take = () => {
    const { peaks, spoken, packets, messages, clicks } = probe;
    Object.assign(probe, gathered());
    return { peaks, spoken, packets, messages, clicks, offers: answerTimes() };
  };

  /** The listener's totals (https://www.w3.org/TR/webrtc-stats/). */
  probe.stats = async () =>
    [...(await probe.peer.getStats()).values()].find((entry) => entry.type === "inbound-rtp" && entry.kind === "audio");

  /** Whether the server has sent a message of this kind. */
  probe.said = (kind) => probe.messages.some(({ type }) => type === kind);

  const now = () => performance.timeOrigin + performance.now();

  function answerTimes() {
    const entries = performance.getEntriesByType("resource").filter(({ name }) => new URL(name).pathname.endsWith("/offer"));
    performance.clearResourceTimings();
    return entries.map(({ startTime, responseEnd }) => responseEnd - startTime);
  }

  // Runs in the audio thread: [instant, largest amplitude] of each 128 samples, sent eight at a time.
  function ear() {
    registerProcessor("ear", class extends AudioWorkletProcessor {
      rows = [];
      process([[samples]]) {
        let peak = 0;
        for (const sample of samples ?? []) peak = Math.max(peak, Math.abs(sample));
        this.rows.push([Date.now(), peak]);
        if (this.rows.length === 8) this.port.postMessage(this.rows.splice(0));
        return true;
      }
    });
  }

  // Runs in a worker: [arrival here, RTP timestamp, sequence number, arrival at the socket or null] of each packet.
  function gate() {
    onrtctransform = ({ transformer: { readable, writable } }) => {
      const look = (frame, out) => {
        const { rtpTimestamp, sequenceNumber, receiveTime } = frame.getMetadata();
        postMessage([performance.timeOrigin + performance.now(), rtpTimestamp, sequenceNumber, receiveTime ?? null]);
        out.enqueue(frame);
      };
      readable.pipeThrough(new TransformStream({ transform: look })).pipeTo(writable).catch(() => {}); // hung up
    };
  }

  // Runs in a worker: [instant, largest amplitude] of each block of a microphone's track, sent eight at a time.
  function tap() {
    onmessage = async ({ data }) => {
      let rows = [];
      for await (const block of data) {
        const samples = new Float32Array(block.numberOfFrames);
        block.copyTo(samples, { planeIndex: 0, format: "f32-planar" });
        block.close();
        let peak = 0;
        for (const sample of samples) peak = Math.max(peak, Math.abs(sample));
        rows.push([performance.timeOrigin + performance.now(), peak]);
        if (rows.length === 8) postMessage(rows.splice(0));
      }
    };
  }

  const address = (source) => URL.createObjectURL(new Blob([`(${source})()`], { type: "text/javascript" }));
  let listener; // one for all calls: a promise of its node

  async function makeListener() {
    const context = new AudioContext({ sampleRate: 48000 });
    await context.audioWorklet.addModule(address(ear));
    const node = new AudioWorkletNode(context, "ear", { numberOfOutputs: 0, channelCount: 1, channelCountMode: "explicit" });
    node.port.onmessage = ({ data }) => probe.peaks.push(...data);
    return node;
  }

  async function listen(track) {
    const node = await (listener ??= makeListener());
    const source = node.context.createMediaStreamSource(new MediaStream([track]));
    source.connect(node);
    return () => source.disconnect();
  }

  /** Gathers what the microphone says; gives what ends that. WebAudio would hear it some 10 ms later than the sender. */
  function overhear(track) {
    const worker = new Worker(address(tap));
    const { readable } = new MediaStreamTrackProcessor({ track });
    worker.onmessage = ({ data }) => probe.spoken.push(...data);
    worker.postMessage(readable, [readable]);
    return worker;
  }

  globalThis.RTCPeerConnection = class extends RTCPeerConnection {
    #deaf;
    #workers = [];

    addTransceiver(...given) {
      const transceiver = super.addTransceiver(...given);
      probe.peer = this;
      this.#deaf = listen(transceiver.receiver.track);
      if (given[0] instanceof MediaStreamTrack) this.#workers.push(overhear(given[0]));
      if (probe.watchPackets) {
        const worker = new Worker(address(gate));
        worker.onmessage = ({ data }) => probe.packets.push(data);
        transceiver.receiver.transform = new RTCRtpScriptTransform(worker);
        this.#workers.push(worker);
      }
      return transceiver;
    }

    createDataChannel(...given) {
      const channel = (probe.channel = super.createDataChannel(...given));
      channel.addEventListener("message", ({ data }) => probe.messages.push({ at: now(), ...JSON.parse(data) }));
      return channel;
    }

    close() {
      super.close();
      for (const worker of this.#workers) worker.terminate();
      this.#deaf?.then((disconnect) => disconnect());
    }
  };

  addEventListener("click", ({ target, timeStamp }) => {
    const { id } = target.closest?.("button") ?? {};
    if (id) probe.clicks.push([performance.timeOrigin + timeStamp, id]);
  }, true);
})();
