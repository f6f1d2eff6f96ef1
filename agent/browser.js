// Measures inside the page for browser.py: samples in the audio thread, packets in a worker, messages and clicks.
// Injected before the page's own scripts, which know nothing of it; it leaves them as they are and only listens.
// All instants are milliseconds since 1970, so that threads can be compared.

(() => {
  const probe = { peaks: [], packets: [], messages: [], clicks: [], watchPackets: false, peer: null, channel: null };
  Object.defineProperty(globalThis, "probe", { value: probe });

  /** Everything gathered since the last call. */
  probe.take = () => {
    const { peaks, packets, messages, clicks } = probe;
    Object.assign(probe, { peaks: [], packets: [], messages: [], clicks: [] });
    return { peaks, packets, messages, clicks, offers: answerTimes() };
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

  globalThis.RTCPeerConnection = class extends RTCPeerConnection {
    #deaf;
    #worker;

    addTransceiver(...given) {
      const transceiver = super.addTransceiver(...given);
      probe.peer = this;
      this.#deaf = listen(transceiver.receiver.track);
      if (probe.watchPackets) {
        this.#worker = new Worker(address(gate));
        this.#worker.onmessage = ({ data }) => probe.packets.push(data);
        transceiver.receiver.transform = new RTCRtpScriptTransform(this.#worker);
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
      this.#worker?.terminate();
      this.#deaf?.then((disconnect) => disconnect());
    }
  };

  addEventListener("click", ({ target, timeStamp }) => {
    const { id } = target.closest?.("button") ?? {};
    if (id) probe.clicks.push([performance.timeOrigin + timeStamp, id]);
  }, true);
})();
