import { beforeEach, describe, expect, it } from 'vitest';
import { newPage, node, show, texts, view, widths } from './looks';
import {
  device,
  resting,
  running,
  session,
  snapshotOf,
  waiting
} from '../states';

beforeEach(newPage);

describe('the memory map', () => {
  it('is to scale, with unmanaged memory', () => {
    show([running, waiting]);
    expect(widths('.jp-GpuShare-bar > .jp-GpuShare-kept')).toEqual([
      6.25, 6.25
    ]);
    expect(widths('.jp-GpuShare-bar > .jp-GpuShare-laneMap')).toEqual([12.5]);
    expect(widths('.jp-GpuShare-bar > .jp-GpuShare-unmanaged')).toEqual([6.25]);
  });

  it('shows how much of a lane each member needs', () => {
    const small = session({ ...waiting, ephemeral_bytes: 2 ** 28 });
    show([running, small]);
    expect(widths('.jp-GpuShare-stripe')).toEqual([25, 12.5]);
  });

  it('puts what is paged out beside it, at the same scale', () => {
    const out = session({
      state: 'paged_out',
      lane: null,
      paged_out_bytes: 2 ** 32
    });
    show([out]);
    expect(widths('.jp-GpuShare-bar .jp-GpuShare-onDisk')).toEqual([25]);
    expect(widths('.jp-GpuShare-bar > .jp-GpuShare-kept')).toEqual([]);
  });

  it('puts the memory of released notebooks there too', () => {
    const state = snapshotOf(device([running], { resting: [resting()] }));
    view.update({ state, receivedAt: 0 });
    expect(widths('.jp-GpuShare-bar .jp-GpuShare-onDisk')).toEqual([18.75]);
    expect(texts('.jp-GpuShare-legend li')).toContain('3.0 GiB on disk');
  });

  it('shows only its beginning where little is used, and says so', () => {
    const little = device([running], {
      persistent_bytes: 2 ** 30,
      unmanaged_bytes: 0,
      free_bytes: 15 * 2 ** 30 - 2 ** 20,
      lanes: [
        {
          id: 1,
          bytes: 2 ** 20,
          holder: 'a',
          members: ['a'],
          beside: null,
          width_bytes: 0
        }
      ]
    });
    view.update({ state: snapshotOf(little), receivedAt: 0 });
    expect(widths('.jp-GpuShare-bar > .jp-GpuShare-kept')).toEqual([50]);
    expect(node.textContent).toContain('The bar shows the first 2.0 GiB');
  });

  it('is described in words for people who do not see it', () => {
    show([running]);
    const label =
      node.querySelector('.jp-GpuShare-bar')!.ariaLabel ??
      node.querySelector('.jp-GpuShare-bar')!.getAttribute('aria-label');
    expect(label).toBe(
      '16.0 GiB in all: 4.0 GiB model and data, 2.0 GiB in 1 lane, 1.0 GiB unmanaged memory, 9.0 GiB free'
    );
  });
});
