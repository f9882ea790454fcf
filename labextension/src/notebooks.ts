/** The notebooks of a device as one table: who runs, the queue in its order, and the others. */

import { Child, div, h, INode } from './dom';
import {
  byName,
  bytes,
  clock,
  expectedShort,
  fileName,
  inOrder,
  isOwn,
  QUICK_SIGN,
  runs,
  sign,
  stateName,
  takers,
  teaches,
  waits
} from './format';
import { IScene } from './scene';
import { IDeviceView, ISessionView } from './snapshot';

const SHOWN = 8; // of a group, until all are asked for
const COLUMNS = 6;
const GREATEST_WEIGHT = 1000;

export function notebooks(device: IDeviceView, scene: IScene): INode {
  const { trans } = scene;
  const sessions = scene.settled(inOrder(device.sessions));
  const quick = takers(device);
  const taking = byName(sessions.filter(one => quick.has(one.id)));
  const steady = sessions.filter(one => !quick.has(one.id));
  const rest = steady.filter(one => !runs(one) && !waits(one));
  return h(
    'table',
    { class: 'jp-GpuShare-notebooks' },
    h('caption', {}, trans.__('Notebooks on %1', device.name)),
    h(
      'thead',
      {},
      h(
        'tr',
        {},
        head(trans.__('#'), trans.__('Place in the queue')),
        head(trans.__('Notebook')),
        head(trans.__('Owner')),
        head(trans.__('Since')),
        head(trans.__('Expected')),
        head('', trans.__('Cancel'))
      )
    ),
    ...group('runs', trans.__('Running'), steady.filter(runs), device, scene),
    ...group('turns', trans.__('Taking turns'), taking, device, scene),
    ...group('waits', trans.__('Queue'), steady.filter(waits), device, scene),
    ...group('rest', trans.__('Not in the queue'), rest, device, scene)
  );
}

function head(title: string, label = title): INode {
  return h(
    'th',
    { scope: 'col', 'aria-label': label === title ? null : label },
    title
  );
}

function group(
  kind: string,
  title: string,
  sessions: ISessionView[],
  device: IDeviceView,
  scene: IScene
): INode[] {
  if (sessions.length === 0) {
    return [];
  }
  const name = `all ${kind} ${device.name}`;
  const shown = scene.isOpen(name) ? sessions : sessions.slice(0, SHOWN);
  return [
    h(
      'tbody',
      { key: kind, class: 'jp-GpuShare-group' },
      h(
        'tr',
        {},
        h(
          'th',
          { colspan: COLUMNS, scope: 'rowgroup' },
          `${title} (${sessions.length})`
        )
      )
    ),
    ...shown.map(session => notebook(session, kind === 'turns', scene)),
    ...(sessions.length > SHOWN ? [more(name, sessions.length, scene)] : [])
  ];
}

function more(name: string, count: number, scene: IScene): INode {
  const { trans } = scene;
  const open = scene.isOpen(name);
  const text = open ? trans.__('Show fewer') : trans.__('Show all %1', count);
  return h(
    'tbody',
    { key: name },
    h(
      'tr',
      {},
      h(
        'td',
        { colspan: COLUMNS },
        button(text, () => scene.toggle(name), { 'aria-expanded': `${open}` })
      )
    )
  );
}

function button(
  text: string,
  onclick: () => void,
  props: Record<string, unknown> = {}
): INode {
  return div('button', 'button', { type: 'button', onclick, ...props }, text);
}

/** One row of figures, one with the reason, and one with all there is if it is opened. */
function notebook(session: ISessionView, quick: boolean, scene: IScene): INode {
  const open = scene.isOpen(session.id);
  const mine = session.id === scene.own ? ' jp-mod-own' : '';
  const kind = quick ? ' jp-mod-quick' : '';
  return h(
    'tbody',
    {
      key: session.id,
      class: `jp-GpuShare-notebook jp-mod-${session.state}${kind}${mine}`
    },
    h(
      'tr',
      {},
      h(
        'td',
        { class: 'jp-GpuShare-place', rowspan: 2 },
        badge(session, quick, scene)
      ),
      h('td', { class: 'jp-GpuShare-cell' }, title(session, open, scene)),
      h(
        'td',
        { class: 'jp-GpuShare-owner', title: session.user },
        session.user
      ),
      h(
        'td',
        { class: 'jp-GpuShare-since' },
        quick ? '' : since(session, scene)
      ),
      h(
        'td',
        { class: 'jp-GpuShare-expected' },
        quick ? '' : expectedShort(session, scene.elapsed, scene.trans)
      ),
      h(
        'td',
        { class: 'jp-GpuShare-act' },
        quick ? null : cancel(session, scene)
      )
    ),
    h(
      'tr',
      {},
      h(
        'td',
        { class: 'jp-GpuShare-reason', colspan: COLUMNS - 1 },
        div(
          'span',
          'ownerToo',
          { 'aria-hidden': 'true' },
          `${session.user} · `
        ),
        quick
          ? scene.trans.__('takes turns, a moment each')
          : reason(session, scene)
      )
    ),
    open
      ? h(
          'tr',
          { key: 'more' },
          h('td', { colspan: COLUMNS }, details(session, scene))
        )
      : null
  );
}

function badge(
  session: ISessionView,
  quick: boolean,
  { trans }: IScene
): INode {
  const state = quick ? trans.__('takes turns') : stateName(session, trans);
  return h(
    'span',
    {
      class: 'jp-GpuShare-sign',
      title: state,
      role: 'img',
      'aria-label':
        waits(session) && !quick ? trans.__('place %1', session.place!) : state
    },
    quick ? QUICK_SIGN : sign(session)
  );
}

function title(session: ISessionView, open: boolean, scene: IScene): INode {
  return div(
    'button',
    'name',
    {
      type: 'button',
      title: session.name,
      'aria-expanded': `${open}`,
      onclick: () => scene.toggle(session.id)
    },
    fileName(session.name)
  );
}

/** A clock that runs here: of the wait, or of the turn. */
function since(session: ISessionView, scene: IScene): string {
  if (session.waiting_seconds !== null) {
    return clock(session.waiting_seconds + scene.elapsed);
  }
  const turn = scene.snapshot.devices
    .flatMap(device => device.turns ?? [])
    .find(one => one.session === session.id && one.ended === null);
  return turn && runs(session) ? clock(turn.began + scene.elapsed) : '';
}

/** Who is out and does not wait to come back says by itself how much is on disk. */
function reason(session: ISessionView, { trans }: IScene): Child {
  const comesBack = session.paged_out_bytes && session.waiting_seconds !== null;
  const disk = comesBack
    ? ` · ${trans.__('%1 on disk', bytes(session.paged_out_bytes))}`
    : '';
  return `${session.reason || stateName(session, trans)}${disk}`;
}

function cancel(session: ISessionView, scene: IScene): Child {
  const { trans, actions } = scene;
  if (
    !actions ||
    session.state !== 'waiting' ||
    !isOwn(scene.viewer, session)
  ) {
    return null;
  }
  const name = fileName(session.name);
  const label = trans.__('Cancel the wait of %1', name);
  const told = trans.__('The wait of %1 is cancelled.', name);
  return button('✕', () => scene.act(actions.ask(session.id, 'cancel'), told), {
    class: 'jp-GpuShare-button jp-mod-icon',
    title: label,
    'aria-label': label
  });
}

// --- all there is of one ------------------------------------------------------------------------

function details(session: ISessionView, scene: IScene): INode {
  const rows = facts(session, scene).flatMap(([name, value]) => [
    h('dt', {}, name),
    h('dd', {}, value)
  ]);
  return div(
    'div',
    'details',
    {},
    h('dl', {}, ...rows),
    whatMayBeDone(session, scene)
  );
}

/** A teacher sets the weights of the group's notebooks. */
function whatMayBeDone(session: ISessionView, scene: IScene): Child {
  if (isOwn(scene.viewer, session)) {
    return buttons(session, scene);
  }
  return scene.actions && teaches(scene.viewer, scene.snapshot, session.group)
    ? div('div', 'buttons', {}, weight(session, scene))
    : null;
}

function facts(session: ISessionView, { trans }: IScene): [string, string][] {
  const size = (count: number) =>
    session.measured ? bytes(count) : trans.__('not measured yet');
  const left = session.remaining_iterations;
  const done = String(session.iterations);
  return [
    [trans.__('Name'), session.name],
    [
      trans.__('Owner'),
      `${session.user}, ${trans.__('process %1', session.pid)}`
    ],
    ...(session.group
      ? [[trans.__('Group'), session.group] as [string, string]]
      : []),
    [trans.__('Keeps'), size(session.persistent_bytes)],
    [trans.__('In an iteration'), size(session.ephemeral_bytes)],
    [
      trans.__('Iterations'),
      left === null
        ? done
        : trans.__('%1 of %2', done, session.iterations + left)
    ],
    [trans.__('On the device'), clock(session.device_seconds)],
    [trans.__('Waited'), clock(session.waited_seconds)],
    [trans.__('Weight'), String(session.weight)],
    [trans.__('Priority'), String(session.priority)]
  ];
}

function buttons(session: ISessionView, scene: IScene): Child {
  const { trans, actions, act } = scene;
  if (!actions) {
    return null;
  }
  const name = fileName(session.name);
  const paused = session.state === 'paused';
  const isIdle = !session.busy && session.state === 'idle';
  return div(
    'div',
    'buttons',
    {},
    runs(session)
      ? button(trans.__('Ask to yield'), () =>
          act(
            actions.ask(session.id, 'yield'),
            trans.__('%1 is asked to yield at the end of its iteration.', name)
          )
        )
      : null,
    button(paused ? trans.__('Resume') : trans.__('Pause'), () =>
      act(
        actions.change(session.id, { paused: !paused }),
        paused
          ? trans.__('%1 takes turns again.', name)
          : trans.__('%1 stands aside until it is resumed.', name)
      )
    ),
    isIdle && session.persistent_bytes > 0
      ? button(trans.__('Page out'), () =>
          act(
            actions.ask(session.id, 'page_out'),
            trans.__('%1 is asked to page out.', name)
          )
        )
      : null,
    weight(session, scene)
  );
}

function weight(session: ISessionView, { trans, actions, act }: IScene): INode {
  const name = fileName(session.name);
  const onchange = (event: Event) => {
    const field = event.target as HTMLInputElement;
    const value = Number(field.value);
    const told = trans.__('%1 has weight %2 now.', name, value);
    act(actions!.change(session.id, { weight: value }), told, field);
  };
  return h(
    'label',
    {},
    `${trans.__('Weight')} `,
    div('input', 'input', {
      type: 'number',
      min: 0.1,
      max: GREATEST_WEIGHT,
      step: 'any',
      value: String(session.weight),
      onchange
    })
  );
}
