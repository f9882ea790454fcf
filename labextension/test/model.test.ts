import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { isSnapshot, State } from '../src/state/notebook';
import {
  FIRST_RETRY_MS,
  GpuShareModel,
  LAST_RETRY_MS
} from '../src/state/model';
import { running, showPage, snapshot, viewer } from './states';

/** A socket whose other end is the test. */
class Socket {
  onmessage: ((event: { data: string }) => void) | null = null;
  onclose: (() => void) | null = null;
  closed = false;
  close() {
    this.closed = true;
  }
}

let sockets: Socket[];
let model: GpuShareModel;

function connect(): WebSocket {
  sockets.push(new Socket());
  return sockets[sockets.length - 1] as unknown as WebSocket;
}

const tell = (message: object) =>
  sockets[0].onmessage!({ data: JSON.stringify(message) });

const held = (state: State) =>
  isSnapshot(state) ? state.devices[0].turns[0].held : null;

beforeEach(() => {
  vi.useFakeTimers();
  sockets = [];
  showPage(true);
  model = new GpuShareModel(connect);
});

afterEach(() => {
  model.dispose();
  vi.useRealTimers();
});

describe('GpuShareModel', () => {
  it('tells each state that comes', () => {
    const seen = vi.fn();
    model.changed.connect(seen);
    expect(model.state).toBeNull();
    tell(snapshot(running));
    expect(seen).toHaveBeenCalledTimes(1);
    expect(model.state).toEqual(snapshot(running));
  });

  it('knows the viewer before the state that it holds for', () => {
    const seen = vi.fn();
    model.changed.connect(() => seen(model.viewer?.user));
    tell(viewer());
    expect(seen).not.toHaveBeenCalled();
    tell(snapshot(running));
    expect(seen).toHaveBeenCalledWith('alice');
  });

  it('judges the state by its clock, though no event comes', () => {
    tell(snapshot(running));
    expect(held(model.state)).toBe(12);
    vi.advanceTimersByTime(30_000);
    expect(held(model.state)).toBe(42);
  });

  it('keeps the last state while its server, or its broker, is away', () => {
    tell(snapshot(running));
    sockets[0].onclose!();
    expect(model.state).toMatchObject({ code: 'disconnected' });
    expect(model.known).toEqual(snapshot(running));
  });

  it('says that the connection is lost, and tries again', () => {
    sockets[0].onclose!();
    expect(model.state).toMatchObject({ code: 'disconnected' });
    vi.advanceTimersByTime(FIRST_RETRY_MS);
    expect(sockets).toHaveLength(2);
  });

  it('backs off, and begins again after a message', () => {
    for (let i = 0; i < 10; i++) {
      sockets[i].onclose!();
      vi.advanceTimersByTime(LAST_RETRY_MS);
    }
    expect(sockets).toHaveLength(11);
    sockets[10].onclose!();
    vi.advanceTimersByTime(LAST_RETRY_MS - 1);
    expect(sockets).toHaveLength(11);
    vi.advanceTimersByTime(1);
    sockets[11].onmessage!({ data: JSON.stringify(snapshot()) });
    sockets[11].onclose!();
    vi.advanceTimersByTime(FIRST_RETRY_MS);
    expect(sockets).toHaveLength(13);
  });

  it('stands by while the page is hidden, keeping what it knew', () => {
    tell(snapshot(running));
    showPage(false);
    expect(sockets[0].closed).toBe(true);
    vi.advanceTimersByTime(10 * LAST_RETRY_MS);
    expect(sockets).toHaveLength(1);
    expect(model.known).toEqual(snapshot(running));
    showPage(true);
    expect(sockets).toHaveLength(2);
  });

  const { broker, ...rest } = snapshot();
  it.each([
    { type: 'Error', code: 'unavailable', message: '' },
    { ...rest, broker: { ...broker, recovering: true } },
    null // its server does not answer
  ])('does not age what it knew by the time that it stood by: %#', came => {
    tell(snapshot(running));
    vi.advanceTimersByTime(10_000);
    showPage(false);
    const stoodBySince = performance.now();
    vi.advanceTimersByTime(3_600_000);
    showPage(true);
    if (came === null) {
      sockets[1].onclose!();
    } else {
      sockets[1].onmessage!({ data: JSON.stringify(came) });
    }
    expect(held(model.known)).toBe(22);
    expect(model.last.validAt).toBe(stoodBySince);
  });

  it('does not open a second socket while a retry is due', () => {
    sockets[0].onclose!();
    showPage(false);
    showPage(true);
    vi.advanceTimersByTime(LAST_RETRY_MS);
    expect(sockets).toHaveLength(2);
  });

  it('leaves nothing behind', () => {
    model.dispose();
    showPage(false);
    showPage(true);
    vi.advanceTimersByTime(LAST_RETRY_MS);
    expect(sockets).toHaveLength(1);
    expect(sockets[0].closed).toBe(true);
  });
});
