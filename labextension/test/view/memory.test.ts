import { beforeEach, describe, expect, it } from 'vitest';
import {
  buttons,
  newPage,
  node,
  press,
  show,
  showDevice,
  texts,
  widths
} from './looks';
import { resting, running, session, waiting } from '../states';

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
    showDevice([running], { resting: [resting()] });
    expect(widths('.jp-GpuShare-bar .jp-GpuShare-onDisk')).toEqual([18.75]);
    expect(texts('.jp-GpuShare-legend li')).toContain('3.0 GiB on disk');
  });

  describe('of a device with little in use', () => {
    const little = session({ persistent_bytes: 2 ** 26 });
    const part = {
      persistent_bytes: 2 ** 26,
      unmanaged_bytes: 0,
      free_bytes: 16 * 2 ** 30 - 2 ** 26,
      lanes: []
    };
    const kept = () => widths('.jp-GpuShare-bar > .jp-GpuShare-kept');

    it('is to scale, with the names of the parts that have no room for one', () => {
      showDevice([little], part);
      expect(kept()).toEqual([0.391]);
      expect(texts('.jp-GpuShare-memory')[0]).toContain(
        'Too narrow for a name, from the left: alice 64.0 MiB.'
      );
      const many = Array.from({ length: 9 }, (_, n) => ({
        ...little,
        id: `${n}`
      }));
      showDevice(many, part);
      expect(texts('.jp-GpuShare-memory')[0]).toContain(', and 3 more.');
    });

    it('shows only its beginning where a viewer asks for it, and says so', () => {
      showDevice([little], part);
      press('Zoom in to the memory in use');
      expect(kept()).toEqual([50]);
      expect(node.textContent).toContain(
        'The bar shows the first 128 MiB; the other 15.9 GiB are free.'
      );
      expect(node.textContent).not.toContain('Too narrow');
      press('Show the whole device');
      expect(kept()).toEqual([0.391]);
      show([running]);
      expect(buttons()).not.toContain('Zoom in to the memory in use');
    });
  });

  it('is described in words for people who do not see it', () => {
    show([running]);
    const bar = node.querySelector('.jp-GpuShare-bar')!;
    expect(bar.getAttribute('aria-label')).toBe(
      '16.0 GiB in all: 4.0 GiB model and data, 2.0 GiB in 1 lane, 1.0 GiB unmanaged memory, 9.0 GiB free'
    );
  });
});
