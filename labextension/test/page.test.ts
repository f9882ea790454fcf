import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { show } from '../src/page';
import { running, snapshot, viewer } from './states';

interface ISocket {
  onmessage(event: { data: string }): void;
  onclose(): void;
}

let opened: string[];
let socket: ISocket;
let node: HTMLElement;
const fetched = vi.fn();

beforeEach(() => {
  vi.useFakeTimers();
  sessionStorage.clear();
  opened = [];
  vi.stubGlobal(
    'WebSocket',
    class {
      constructor(url: URL) {
        opened.push(url.pathname);
        socket = this as unknown as ISocket;
      }
    }
  );
  fetched.mockReset().mockResolvedValue(Response.json({}));
  vi.stubGlobal('fetch', fetched);
  node = document.createElement('main');
  node.dataset.baseUrl = '/services/gpushare/';
  node.dataset.xsrf = 'word';
  show(node);
});

afterEach(() => {
  vi.unstubAllGlobals();
  vi.useRealTimers();
});

const tell = (message: object) =>
  socket.onmessage({ data: JSON.stringify(message) });

describe('the page of a hub', () => {
  it('reloads once when it is refused, and again after it was let in', () => {
    const reload = vi.fn();
    vi.stubGlobal('location', { href: location.href, reload });
    const refusal = { type: 'Error', code: 'not_permitted', message: 'ended' };
    tell(refusal);
    tell(refusal);
    expect(reload).toHaveBeenCalledTimes(1);
    expect(node.textContent).toContain('The broker refuses this page.ended');
    tell({ ...refusal, code: 'unavailable' });
    tell(refusal);
    expect(reload).toHaveBeenCalledTimes(1);
    tell(snapshot(running));
    tell(refusal);
    expect(reload).toHaveBeenCalledTimes(2);
  });

  it('shows what the service pushes', () => {
    expect(opened).toEqual([
      '/services/gpushare/jupyter-gpushare/api/v1/events'
    ]);
    tell(viewer());
    tell(snapshot(running));
    expect(node.textContent).toContain('alice.ipynb has been running for 12 s');
    vi.advanceTimersByTime(5000);
    expect(node.textContent).toContain('alice.ipynb has been running for 17 s');
  });

  it('asks for changes with the word that proves it ours', () => {
    tell({ ...viewer(), is_administrator: true, may_change: true });
    tell(snapshot(running));
    const field = node.querySelector('select')!;
    field.value = 'fifo';
    field.dispatchEvent(new Event('change'));
    expect(fetched).not.toHaveBeenCalled();
    node.querySelector<HTMLElement>('.jp-GpuShare-policy button')!.click();
    const [url, init] = fetched.mock.calls[0];
    expect(url.pathname).toBe(
      '/services/gpushare/jupyter-gpushare/api/v1/policy'
    );
    expect(init.method).toBe('PUT');
    expect(init.headers['X-XSRFToken']).toBe('word');
  });

  it('checks whether it has to log in when its connection is lost', () => {
    tell(snapshot(running));
    expect(fetched).not.toHaveBeenCalled();
    socket.onclose();
    // the service runs no kernel, so none has ended with it
    expect(node.textContent).toContain('keeps its queue position');
    expect(node.textContent).not.toContain('kernels');
    expect(fetched.mock.calls[0][0].pathname).toBe(
      '/services/gpushare/jupyter-gpushare/api/v1/viewer'
    );
  });
});
