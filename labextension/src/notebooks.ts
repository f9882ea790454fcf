/**
 * The notebooks of a device as one table: those that run, the queue in its
 * order, and the others.
 */

import { Child, div, h, INode } from './dom';
import {
  atOnce,
  bytes,
  clock,
  expectedShort,
  gang,
  idleFor,
  isOwn,
  Notebook,
  QUICK_SIGN,
  resting,
  sign,
  stateName,
  stateOf,
  teaches
} from './format';
import { arranged, byName, runs, turnOf, waits } from './queue';
import { namer, sentence } from './reasons';
import { IScene } from './scene';
import { IDeviceView, IRestingView, ISessionView } from './snapshot';

const SHOWN = 8; // of a group, until all are asked for
const COLUMNS = 6;
const GREATEST_WEIGHT = 1000;

/** What the table shows of a notebook. */
interface IRow {
  notebook: Notebook;
  /** Its state, as the style sheet knows it, and the sign for it. */
  looks: string;
  sign: string;
  /** The sign in words; `label` is for people who do not see it. */
  state: string;
  label: string;
  since: string;
  expected: string;
  act: Child;
  reason: string;
  details: () => INode;
}

export function notebooks(device: IDeviceView, scene: IScene): INode {
  const { trans } = scene;
  const { running, taking, queue, others } = arranged(device);
  const parts = [
    group('runs', trans.__('Running'), running, present),
    group('turns', trans.__('Taking turns'), taking, takingTurns),
    group('waits', trans.__('Queue'), queue, present),
    group('others', trans.__('Idle or paused'), others, present),
    group(
      'resting',
      trans.__('Resting until their next cell'),
      byName(resting(device)),
      atRest
    )
  ];
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
        head(trans.__('#'), trans.__('Queue position')),
        head(trans.__('Notebook')),
        head(trans.__('Owner')),
        head(trans.__('Since')),
        head(trans.__('Expected')),
        head('', trans.__('Cancel'))
      )
    ),
    ...parts.flatMap(part => part(device, scene))
  );
}

function head(title: string, label = title): INode {
  return h(
    'th',
    { scope: 'col', 'aria-label': label === title ? null : label },
    title
  );
}

/** The rows of a group, with its title; nothing where there are none. */
function group<T extends Notebook>(
  kind: string,
  title: string,
  notebooks: T[],
  rowOf: (notebook: T, scene: IScene) => IRow
): (device: IDeviceView, scene: IScene) => INode[] {
  return (device, scene) => {
    if (notebooks.length === 0) {
      return [];
    }
    const name = `all ${kind} ${device.name}`;
    const shown = scene.isOpen(name) ? notebooks : notebooks.slice(0, SHOWN);
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
            `${title} (${notebooks.length})`
          )
        )
      ),
      ...shown.map(one => drawn(rowOf(one, scene), scene)),
      ...(notebooks.length > SHOWN ? [more(name, notebooks.length, scene)] : [])
    ];
  };
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
  onclick: (event: MouseEvent) => void,
  props: Record<string, unknown> = {}
): INode {
  return div('button', 'button', { type: 'button', onclick, ...props }, text);
}

function present(session: ISessionView, scene: IScene): IRow {
  const state = stateName(session, scene.trans);
  return {
    notebook: session,
    looks: session.state,
    sign: sign(session),
    state,
    label: waits(session)
      ? scene.trans.__('queue position %1', session.place!)
      : state,
    since: since(session, scene),
    expected: expectedShort(session, scene.trans),
    act: cancel(session, scene),
    reason: reason(session, scene),
    details: () => details(session, scene)
  };
}

/** The state without the part that changes faster than a person reads. */
function takingTurns(session: ISessionView, scene: IScene): IRow {
  const state = scene.trans.__('takes turns');
  return {
    ...present(session, scene),
    looks: `${session.state} jp-mod-quick`,
    sign: QUICK_SIGN,
    state,
    label: state,
    since: '',
    expected: '',
    act: null,
    reason: scene.trans.__('shares the device in short turns')
  };
}

/**
 * It is released from the device, so there is nothing that could be done to it.
 */
function atRest(notebook: IRestingView, scene: IScene): IRow {
  const state = stateName(notebook, scene.trans);
  return {
    notebook,
    looks: stateOf(notebook),
    sign: sign(notebook),
    state,
    label: state,
    since: '',
    expected: '',
    act: null,
    reason: joined([
      dueOrIdle(notebook, scene),
      onDisk(notebook.paged_out_bytes, scene)
    ]),
    details: () => div('div', 'details', {}, list(identity(notebook, scene)))
  };
}

/**
 * One row of figures, one with the reason, and one with all details if it is
 * opened.
 */
function drawn(row: IRow, scene: IScene): INode {
  const { id, user } = row.notebook;
  const mine = id === scene.own ? ' jp-mod-own' : '';
  return h(
    'tbody',
    { key: id, class: `jp-GpuShare-notebook jp-mod-${row.looks}${mine}` },
    h(
      'tr',
      {},
      h('td', { class: 'jp-GpuShare-place', rowspan: 2 }, badge(row)),
      h('td', { class: 'jp-GpuShare-cell' }, title(row.notebook, scene)),
      h('td', { class: 'jp-GpuShare-owner', title: user }, user),
      h('td', { class: 'jp-GpuShare-since' }, row.since),
      h('td', { class: 'jp-GpuShare-expected' }, row.expected),
      h('td', { class: 'jp-GpuShare-act' }, row.act)
    ),
    h(
      'tr',
      {},
      h(
        'td',
        { class: 'jp-GpuShare-reason', colspan: COLUMNS - 1 },
        div('span', 'ownerToo', { 'aria-hidden': 'true' }, `${user} · `),
        row.reason,
        queueAgain(row.notebook, scene)
      )
    ),
    scene.isOpen(id)
      ? h('tr', { key: 'more' }, h('td', { colspan: COLUMNS }, row.details()))
      : null
  );
}

function badge({ sign, state, label }: IRow): INode {
  return h(
    'span',
    {
      class: 'jp-GpuShare-sign',
      title: state,
      role: 'img',
      'aria-label': label
    },
    sign
  );
}

function title(notebook: Notebook, scene: IScene): INode {
  const { id, name } = notebook;
  return div(
    'button',
    'name',
    {
      type: 'button',
      title: name,
      'aria-expanded': `${scene.isOpen(id)}`,
      onclick: () => scene.toggle(id)
    },
    scene.nameOf(notebook)
  );
}

/** A clock that runs here: of the wait, or of the turn. */
function since(session: ISessionView, { snapshot }: IScene): string {
  if (session.waiting_seconds !== null) {
    return clock(session.waiting_seconds);
  }
  const turns = snapshot.devices.flatMap(
    device => turnOf(session, device) ?? []
  );
  return turns.length > 0 && runs(session) ? clock(turns[0].held) : '';
}

/**
 * For a notebook that is paged out and does not wait to come back, the state
 * says how much is on disk.
 */
function reason(session: ISessionView, scene: IScene): string {
  const comesBack = session.waiting_seconds !== null;
  return joined([
    why(session, scene) || stateName(session, scene.trans),
    comesBack ? onDisk(session.paged_out_bytes, scene) : '',
    dueOrIdle(session, scene)
  ]);
}

/** In the language of the page; a broker that is older tells no codes. */
function why({ why, reason }: ISessionView, scene: IScene): string {
  const { snapshot, nameOf, trans } = scene;
  return why?.length
    ? sentence(why, namer(snapshot, nameOf, trans), trans)
    : reason;
}

function joined(parts: string[]): string {
  return parts.filter(Boolean).join(' · ');
}

function onDisk(count: number, { trans }: IScene): string {
  return count > 0 ? trans.__('%1 on disk', bytes(count)) : '';
}

/**
 * The pending action of its Jupyter server comes before the actions that were
 * carried out.
 */
function dueOrIdle(notebook: Notebook, scene: IScene): string {
  const due = (scene.snapshot.interventions ?? []).find(
    ({ session }) => session === notebook.id
  );
  return due?.sentence ?? idleFor(notebook, scene.trans);
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
  const name = scene.nameOf(session);
  const label = trans.__('Cancel the wait of %1', name);
  const told = trans.__('The wait of %1 is cancelled.', name);
  // the focus moves with its row, so a press of a key is meant for it
  const onclick = (event: MouseEvent) =>
    event.detail > 0 && scene.hasJustMoved()
      ? scene.refuse(
          trans.__('The queue has just moved on: press again to cancel.')
        )
      : scene.act(actions.ask(session.id, 'cancel'), told, { ended: session });
  return button('✕', onclick, {
    class: 'jp-GpuShare-button jp-mod-icon',
    title: label,
    'aria-label': label
  });
}

/**
 * For a cell whose wait was cancelled, while it is there and was not run again.
 */
function queueAgain(notebook: Notebook, scene: IScene): Child {
  const { trans } = scene;
  const again = scene.again(notebook);
  if (again === null) {
    return null;
  }
  const name = scene.nameOf(notebook);
  return button(
    trans.__('Queue again'),
    () => scene.act(again(), trans.__('The cell of %1 runs again.', name)),
    {
      key: 'again',
      'aria-label': trans.__('Queue the cancelled cell of %1 again', name)
    }
  );
}

// --- all details of one notebook ---------------------------------------------

function details(session: ISessionView, scene: IScene): INode {
  return div(
    'div',
    'details',
    {},
    list(facts(session, scene)),
    whatMayBeDone(session, scene)
  );
}

function list(rows: [string, string][]): INode {
  const cells = rows.flatMap(([name, value]) => [
    h('dt', {}, name),
    h('dd', {}, value)
  ]);
  return h('dl', {}, ...cells);
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

function identity(
  { name, user, pid }: Notebook,
  { trans }: IScene
): [string, string][] {
  return [
    [trans.__('Name'), name],
    [trans.__('Owner'), `${user}, ${trans.__('process %1', pid)}`]
  ];
}

function facts(session: ISessionView, scene: IScene): [string, string][] {
  const { trans } = scene;
  const size = (count: number) =>
    session.measured ? bytes(count) : trans.__('not measured yet');
  const left = session.remaining_iterations;
  const done = String(session.iterations);
  return [
    ...identity(session, scene),
    ...(session.group
      ? [[trans.__('Group'), session.group] as [string, string]]
      : []),
    ...(gang(session).length > 0
      ? [[trans.__('Devices'), atOnce(session, trans)] as [string, string]]
      : []),
    [trans.__('Model and data'), size(session.persistent_bytes)],
    [trans.__('Working memory, peak'), size(session.ephemeral_bytes)],
    [
      trans.__('Iterations'),
      left === null
        ? done
        : trans.__('%1 of %2', done, session.iterations + left)
    ],
    [trans.__('Device time'), clock(session.device_seconds)],
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
  const name = scene.nameOf(session);
  const paused = session.state === 'paused';
  const isIdle = !session.busy && session.state === 'idle';
  return div(
    'div',
    'buttons',
    {},
    runs(session)
      ? button(trans.__('Give way after this iteration'), () =>
          act(
            actions.ask(session.id, 'yield'),
            trans.__('%1 is asked to give way after its iteration.', name)
          )
        )
      : null,
    button(paused ? trans.__('Resume') : trans.__('Pause'), () =>
      act(
        actions.change(session.id, { paused: !paused }),
        paused
          ? trans.__('%1 takes turns again.', name)
          : trans.__(
              '%1 is paused. It will not use the device until it is resumed.',
              name
            )
      )
    ),
    isIdle && session.persistent_bytes > 0
      ? button(trans.__('Move to disk'), () =>
          act(
            actions.ask(session.id, 'page_out'),
            trans.__('%1 is asked to move its memory to disk.', name)
          )
        )
      : null,
    weight(session, scene)
  );
}

function weight(session: ISessionView, scene: IScene): INode {
  const { trans, actions, act, refuse } = scene;
  const onchange = (event: Event) => {
    const field = event.target as HTMLInputElement;
    const value = Number(field.value);
    if (!isWeight(field.value)) {
      const right = trans.__(
        'A weight is a number above 0, and at most %1, such as 0.5 or 2. It stays %2.',
        GREATEST_WEIGHT,
        session.weight
      );
      refuse(right, field);
      return;
    }
    const told = trans.__(
      '%1 has weight %2 now.',
      scene.nameOf(session),
      value
    );
    act(actions!.change(session.id, { weight: value }), told, { field });
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

/** A field of numbers is empty where the typed text is none. */
function isWeight(text: string): boolean {
  const value = Number(text);
  return text.trim() !== '' && value > 0 && value <= GREATEST_WEIGHT;
}
