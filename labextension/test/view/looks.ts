/** A view on an empty page, and how the tests read and press what is there. */

import { vi } from 'vitest';
import { IActions } from '../../src/view/view_model';
import { IDeviceView, ISessionView, IViewer } from '../../src/state/snapshot';
import { GpuShareView } from '../../src/view/view';
import {
  device,
  running,
  session,
  snapshot,
  snapshotOf,
  viewer
} from '../states';

export const admin = viewer({ is_administrator: true });

/** One that runs, and others that wait for it. */
export const many = (count: number) => [
  running,
  ...Array.from({ length: count - 1 }, (_, index) =>
    session({
      id: `w${index}`,
      name: `n${index}.ipynb`,
      state: 'waiting',
      position: index + 1,
      waiting_seconds: 1
    })
  )
];

export let node: HTMLElement;
export let view: GpuShareView;
export let actions: IActions;

/** What each test begins with. */
export function newPage() {
  node = document.createElement('div');
  document.body.replaceChildren(node);
  actions = {
    change: vi.fn(),
    ask: vi.fn(),
    choosePolicy: vi.fn(),
    holdClass: vi.fn()
  };
  view = new GpuShareView(node, undefined, actions);
}

export function show(
  sessions: ISessionView[],
  who: IViewer | null = admin,
  now = 0
) {
  view.update(
    { state: snapshot(...sessions), receivedAt: 0, viewer: who },
    now
  );
}

export function showDevice(
  sessions: ISessionView[],
  changes: Partial<IDeviceView> = {},
  who: IViewer | null = null
) {
  const state = snapshotOf(device(sessions, changes));
  view.update({ state, receivedAt: 0, viewer: who });
}

export const texts = (selector: string) =>
  [...node.querySelectorAll(selector)].map(found => found.textContent);
export const all = <T extends Element>(selector: string) => [
  ...node.querySelectorAll<T>(selector)
];
export const buttons = () => texts('button');
export const press = (label: string) =>
  all<HTMLElement>('button')
    .find(
      found =>
        found.textContent === label ||
        found.getAttribute('aria-label') === label
    )!
    .click();
/** Choose without applying it yet, as a viewer does. */
export function choose(policy: string) {
  const field = node.querySelector('select')!;
  field.value = policy;
  field.dispatchEvent(new Event('change'));
}
export const widths = (selector: string) =>
  all<HTMLElement>(selector).map(part => parseFloat(part.style.width));
