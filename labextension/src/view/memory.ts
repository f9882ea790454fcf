/**
 * The memory of a device, to scale: one bar for the device, one for memory that
 * lies on disk. A viewer may ask for the part of the bar that is used.
 */

import { button, Child, div, h, INode, note } from './dom';
import { bytes, labels, stem, title } from '../state/format';
import { Notebook, notebooksOn } from '../state/notebook';
import { IViewModel } from './view_model';
import { IDeviceView, ILaneView, ISessionView } from '../state/snapshot';

const MAGNIFIED = 8; // below this part of the device the bar can be zoomed
const NARROW = 0.02; // of the bar; a line beside such a part would hide it
const NAMED = 6; // parts without room for a name that the legend names
const STRIPES = 8; // of a lane; more of them have no space in between
const LABELLED = 0.16; // of the bar; a narrower part has no room for a name

export function memoryMap(device: IDeviceView, viewModel: IViewModel): INode {
  const { trans } = viewModel;
  const zoom = `zoom ${device.name}`;
  const span = viewModel.isOpen(zoom) ? beginning(device) : whole(device);
  const rest = device.capacity_bytes - span;
  const isNarrow = resident(device).some(
    ({ persistent_bytes }) => persistent_bytes < NARROW * span
  );
  const many = isNarrow ? ' jp-mod-many' : '';
  return div(
    'section',
    'memory',
    { 'aria-label': trans.__('Memory of %1', device.name) },
    div(
      'div',
      `bar${many}`,
      { role: 'img', 'aria-label': words(device, viewModel) },
      ...resident(device).map(session => kept(session, span, viewModel)),
      ...device.lanes.map(lane => laneOf(lane, device, span, viewModel)),
      part('unmanaged', 'unmanaged', device.unmanaged_bytes ?? 0, span, {
        title: `${title(labels(trans).unmanaged)}: ${bytes(device.unmanaged_bytes ?? 0)}`
      }),
      div('span', 'free', {
        key: 'free',
        style: width(Math.min(device.free_bytes, span), span),
        title: trans.__('Free: %1', bytes(device.free_bytes))
      })
    ),
    onDisk(device, span, viewModel),
    legend(device, viewModel),
    unlabelled(device, span, viewModel),
    rest > 0
      ? note(
          trans.__(
            'The bar shows the first %1; the other %2 are free.',
            bytes(span),
            bytes(rest)
          )
        )
      : null,
    beginning(device) < whole(device)
      ? button(
          viewModel.isOpen(zoom)
            ? trans.__('Show the whole device')
            : trans.__('Zoom in to the memory in use'),
          () => viewModel.toggle(zoom),
          { key: 'zoom' }
        )
      : null
  );
}

/** The number of bytes that the whole width stands for. */
function whole(device: IDeviceView): number {
  return Math.max(device.capacity_bytes, paged(device), 1);
}

/** The number of bytes if only the used beginning of the bar is shown. */
function beginning(device: IDeviceView): number {
  const taken = device.capacity_bytes - device.free_bytes;
  const most = Math.max(taken, paged(device));
  return most === 0 || most * MAGNIFIED > device.capacity_bytes
    ? whole(device)
    : 2 ** Math.ceil(Math.log2(1.2 * most));
}

/** The names of the notebooks whose parts have no room for one, in their order. */
function unlabelled(
  device: IDeviceView,
  span: number,
  { trans, nameOf }: IViewModel
): Child {
  const there = resident(device).filter(
    ({ persistent_bytes }) => !hasRoom(persistent_bytes, span)
  );
  const named = there
    .slice(0, NAMED)
    .map(one => `${stem(nameOf(one))} ${bytes(one.persistent_bytes)}`)
    .join(', ');
  const others = there.length - NAMED;
  if (there.length === 0) {
    return null;
  }
  return note(
    others > 0
      ? trans.__(
          'Too narrow for a name, from the left: %1, and %2 more.',
          named,
          others
        )
      : trans.__('Too narrow for a name, from the left: %1.', named),
    'unlabelled'
  );
}

function hasRoom(count: number, span: number): boolean {
  return count > LABELLED * span;
}

function paged(device: IDeviceView): number {
  return out(device).reduce((sum, one) => sum + one.paged_out_bytes, 0);
}

/** Notebooks with memory on disk. */
function out(device: IDeviceView): Notebook[] {
  return notebooksOn(device).filter(one => one.paged_out_bytes > 0);
}

/** Notebooks whose persistent memory is on the device: they are in a lane. */
function resident(device: IDeviceView): ISessionView[] {
  return device.sessions.filter(
    ({ lane, persistent_bytes }) => lane !== null && persistent_bytes > 0
  );
}

function width(count: number, span: number): string {
  return `width: ${((100 * count) / span).toFixed(3)}%`;
}

function part(
  kind: string,
  key: string,
  count: number,
  span: number,
  props: Record<string, unknown>,
  ...children: Child[]
): INode | null {
  const style = width(count, span);
  return count > 0
    ? div('span', kind, { key, style, ...props }, ...children)
    : null;
}

function kept(
  session: ISessionView,
  span: number,
  { trans, nameOf }: IViewModel
): INode | null {
  const count = session.persistent_bytes;
  return part(
    'kept',
    session.id,
    count,
    span,
    { title: `${session.name}: ${bytes(count)} ${labels(trans).persistent}` },
    hasRoom(count, span) ? stem(nameOf(session)) : null
  );
}

/** A lane is as large as its largest member needs; the stripes are its members. */
function laneOf(
  lane: ILaneView,
  device: IDeviceView,
  span: number,
  { trans, nameOf }: IViewModel
): INode | null {
  const members = device.sessions
    .filter(({ id }) => lane.members.includes(id))
    .sort((a, b) => b.ephemeral_bytes - a.ephemeral_bytes);
  const sizes = members.map(
    one => `${stem(nameOf(one))}: ${bytes(one.ephemeral_bytes)}`
  );
  const lines = [trans.__('Lane %1: %2', lane.id, bytes(lane.bytes)), ...sizes];
  const many = members.length > STRIPES ? ' jp-mod-many' : '';
  return part(
    `laneMap${many}`,
    `lane ${lane.id}`,
    lane.bytes,
    span,
    { title: lines.slice(0, 12).join('\n') },
    ...members.map(one => stripe(one, lane)),
    hasRoom(lane.bytes, span)
      ? div('span', 'laneName', { key: 'name' }, trans.__('lane %1', lane.id))
      : null
  );
}

function stripe(session: ISessionView, lane: ILaneView): INode {
  const is = session.id === lane.holder ? ' jp-mod-held' : '';
  const share = Math.min(1, session.ephemeral_bytes / Math.max(1, lane.bytes));
  return div('i', `stripe${is}`, {
    key: session.id,
    style: `width: ${(100 * share).toFixed(2)}%`
  });
}

function onDisk(
  device: IDeviceView,
  span: number,
  viewModel: IViewModel
): Child {
  const { trans } = viewModel;
  const parts = out(device).map(one => {
    const { id, name, paged_out_bytes } = one;
    return part(
      'onDisk',
      id,
      paged_out_bytes,
      span,
      { title: trans.__('%1: %2 on disk', name, bytes(paged_out_bytes)) },
      hasRoom(paged_out_bytes, span) ? stem(viewModel.nameOf(one)) : null
    );
  });
  const label = trans.__('On disk: %1', bytes(paged(device)));
  return parts.length > 0
    ? div(
        'div',
        'bar jp-mod-disk',
        { role: 'img', 'aria-label': label },
        ...parts
      )
    : null;
}

/**
 * Kind, figure and words of each row of the legend; rows without bytes are left
 * out.
 */
function rows(
  device: IDeviceView,
  { trans }: IViewModel
): [string, number, string][] {
  const lanes = device.lanes.reduce((sum, lane) => sum + lane.bytes, 0);
  const all: [string, number, string][] = [
    ['kept', device.persistent_bytes, labels(trans).persistent],
    [
      'laneMap',
      lanes,
      trans._n('in %1 lane', 'in %1 lanes', device.lanes.length)
    ],
    ['unmanaged', device.unmanaged_bytes ?? 0, labels(trans).unmanaged],
    ['free', device.free_bytes, trans.__('free')],
    ['onDisk', paged(device), trans.__('on disk')]
  ];
  return all.filter(([kind, count]) => count > 0 || kind === 'free');
}

function legend(device: IDeviceView, viewModel: IViewModel): INode {
  return div(
    'ul',
    'legend',
    { 'aria-hidden': 'true' },
    ...rows(device, viewModel).map(([kind, count, words]) =>
      h(
        'li',
        {},
        div('span', `swatch jp-GpuShare-${kind}`, {}),
        h('b', {}, bytes(count)),
        ` ${words}`
      )
    )
  );
}

function words(device: IDeviceView, viewModel: IViewModel): string {
  const parts = rows(device, viewModel).map(
    ([, count, text]) => `${bytes(count)} ${text}`
  );
  return viewModel.trans.__(
    '%1 in all: %2',
    bytes(device.capacity_bytes),
    parts.join(', ')
  );
}
