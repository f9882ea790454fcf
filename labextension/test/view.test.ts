import { beforeEach, describe, expect, it } from 'vitest';
import { GpuShareView } from '../src/view';
import { running, session, snapshot, waiting } from './states';

let node: HTMLElement;
let view: GpuShareView;

beforeEach(() => {
  node = document.createElement('div');
  view = new GpuShareView(node);
});

const texts = (selector: string) =>
  [...node.querySelectorAll(selector)].map(found => found.textContent);

describe('GpuShareView', () => {
  it('shows memory, lanes and who holds them', () => {
    view.update(snapshot(running, waiting), 0);
    expect(texts('.jp-GpuShare-title')).toEqual(['host6.00 GiB of 16.0 GiB']);
    expect(texts('.jp-GpuShare-lane')).toEqual(['alice.ipynb2.00 GiB']);
    const parts = [...node.querySelectorAll<HTMLElement>('.jp-GpuShare-part')];
    expect(parts.map(part => part.style.width)).toEqual(['25%', '12.5%']);
  });

  it('shows place, reason, wait and expected wait of who waits', () => {
    view.update(snapshot(running, waiting), 0);
    expect(texts('.jp-mod-waiting td')).toEqual([
      '1',
      'bob.ipynb',
      '0:58',
      '1.50 GiB',
      'alice.ipynb has the lane · ≈ 0:10 to go'
    ]);
  });

  it('moves the clocks without a new snapshot', () => {
    view.update(snapshot(waiting), 1000);
    const row = node.querySelector('tbody tr');
    view.tick(5500);
    expect(texts('.jp-GpuShare-wait')).toEqual(['1:02']);
    expect(texts('.jp-GpuShare-detail')[0]).toContain('≈ 0:05 to go');
    view.tick(60_000);
    expect(texts('.jp-GpuShare-detail')[0]).toContain('any moment now');
    expect(node.querySelector('tbody tr')).toBe(row);
  });

  it('takes names as text, never as markup', () => {
    const name = '<img src=x onerror=alert(1)>';
    view.update(snapshot(session({ name, reason: name, user: name })), 0);
    expect(node.querySelector('img')).toBeNull();
    expect(node.textContent).toContain(name);
  });

  it('says how to join where nobody shares', () => {
    view.update(snapshot(), 0);
    expect(node.textContent).toContain('%gpushare on');
    expect(node.querySelector('table')).toBeNull();
  });

  it('says that the broker is away, and comes back', () => {
    const message = 'no broker answers on /run/b.sock';
    view.update({ type: 'Error', code: 'unavailable', message }, 0);
    expect(node.textContent).toContain(message);
    view.update(snapshot(running), 0);
    expect(node.textContent).not.toContain(message);
  });

  it('gives no figure for memory that is not measured yet', () => {
    view.update(snapshot(session({ measured: false })), 0);
    expect(texts('.jp-GpuShare-size')).toEqual(['…']);
  });
});
