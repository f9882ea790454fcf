/**
 * The notebooks of a device as one table: those that run, the queue in its
 * order, and the others.
 */

import { cancelButton, cancelQuestion, queueAgain } from './cancel';
import { details, detailsAtRest } from './details';
import { button, Child, div, h, INode } from './dom';
import { bytes, clock, labels, title as titled } from '../state/format';
import { everyone, Notebook, resting, stateOf } from '../state/notebook';
import {
  expectedShort,
  idleFor,
  progress,
  QUICK_SIGN,
  sign,
  stateName
} from '../state/sentences';
import {
  arranged,
  byName,
  QUICK_SECONDS,
  runs,
  turnOf,
  waits
} from '../state/queue';
import { namer, sentence } from '../state/reasons';
import { IViewModel } from './view_model';
import { IDeviceView, IRestingView, ISessionView } from '../state/snapshot';

const SHOWN = 8; // of a group, until all are asked for
const COLUMNS = 6;

/** A row without times, and without a wait that could be cancelled. */
const NO_WAIT = { since: '', expected: '', act: null, question: null };

/** The table's data of one notebook. */
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
  question: Child;
  reason: string;
  details: () => INode;
}

export function notebooks(device: IDeviceView, viewModel: IViewModel): INode {
  const { trans } = viewModel;
  const { running, taking, queue, others } = arranged(device);
  const parts = [
    group('runs', trans.__('Running'), running, present),
    group('turns', trans.__('Taking turns'), taking, takingTurns),
    group('waits', trans.__('Queue'), queue, present),
    group('others', trans.__('Not in the queue'), others, present),
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
        head(trans.__('#'), titled(labels(trans).position)),
        head(trans.__('Notebook')),
        head(trans.__('Owner')),
        head(trans.__('Since')),
        head(trans.__('Expected')),
        head(trans.__('Cancel')) // read out, and not drawn
      )
    ),
    ...parts.flatMap(part => part(device, viewModel))
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
  rowOf: (notebook: T, viewModel: IViewModel) => IRow
): (device: IDeviceView, viewModel: IViewModel) => INode[] {
  return (device, viewModel) => {
    if (notebooks.length === 0) {
      return [];
    }
    const name = `all ${kind} ${device.name}`;
    const shown = viewModel.isOpen(name)
      ? notebooks
      : notebooks.slice(0, SHOWN);
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
      ...shown.map(one => drawn(rowOf(one, viewModel), viewModel)),
      ...(notebooks.length > SHOWN
        ? [more(name, notebooks.length, viewModel)]
        : [])
    ];
  };
}

function more(name: string, count: number, viewModel: IViewModel): INode {
  const { trans } = viewModel;
  const open = viewModel.isOpen(name);
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
        button(text, () => viewModel.toggle(name), {
          'aria-expanded': `${open}`
        })
      )
    )
  );
}

function present(session: ISessionView, viewModel: IViewModel): IRow {
  const state = stateName(session, viewModel.trans);
  return {
    notebook: session,
    looks: session.state,
    sign: sign(session),
    state,
    label: waits(session)
      ? viewModel.trans.__('queue position %1', session.position!)
      : state,
    since: since(session, viewModel),
    expected: expectedShort(session, viewModel.trans),
    act: cancelButton(session, viewModel),
    question: cancelQuestion(session, viewModel),
    reason: reason(session, viewModel),
    details: () => details(session, viewModel)
  };
}

/** The state without the part that changes faster than a person reads. */
function takingTurns(session: ISessionView, viewModel: IViewModel): IRow {
  const state = viewModel.trans.__('takes turns');
  return {
    ...present(session, viewModel),
    ...NO_WAIT,
    looks: `${session.state} jp-mod-quick`,
    sign: QUICK_SIGN,
    state,
    label: state,
    reason: joined([
      viewModel.trans.__('shares the device in short turns'),
      progress(session, viewModel.trans)
    ])
  };
}

/**
 * It is released from the device, so it has no actions.
 */
function atRest(notebook: IRestingView, viewModel: IViewModel): IRow {
  const state = stateName(notebook, viewModel.trans);
  return {
    ...NO_WAIT,
    notebook,
    looks: stateOf(notebook),
    sign: sign(notebook),
    state,
    label: state,
    reason: joined([
      dueOrIdle(notebook, viewModel),
      onDisk(notebook.paged_out_bytes, viewModel)
    ]),
    details: () => detailsAtRest(notebook, viewModel)
  };
}

/**
 * One row of figures, one with the reason, and one with all details if it is
 * opened.
 */
function drawn(row: IRow, viewModel: IViewModel): INode {
  const { id, user } = row.notebook;
  const mine = id === viewModel.own ? ' jp-mod-own' : '';
  return h(
    'tbody',
    { key: id, class: `jp-GpuShare-notebook jp-mod-${row.looks}${mine}` },
    h(
      'tr',
      {},
      h('td', { class: 'jp-GpuShare-place', rowspan: 2 }, badge(row)),
      h('td', { class: 'jp-GpuShare-cell' }, title(row.notebook, viewModel)),
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
        {
          class: 'jp-GpuShare-reason',
          colspan: COLUMNS - 1,
          // where the panel is too narrow for their columns
          'data-times': times(row)
        },
        ownerToo(user, viewModel),
        row.reason,
        queueAgain(row.notebook, viewModel),
        row.question
      )
    ),
    viewModel.isOpen(id)
      ? h('tr', { key: 'more' }, h('td', { colspan: COLUMNS }, row.details()))
      : null
  );
}

/** The owner, if the panel is too narrow for a column and owners differ. */
function ownerToo(user: string, { snapshot }: IViewModel): Child {
  return everyone(snapshot).some(other => other.user !== user)
    ? div('span', 'ownerToo', { 'aria-hidden': 'true' }, `${user} · `)
    : null;
}

function times({ since, expected }: IRow): string | null {
  return since || expected ? `${joined([since, expected])} · ` : null;
}

function badge({ sign, state, label }: IRow): INode {
  const props = { title: state, role: 'img', 'aria-label': label };
  return div('span', 'sign', props, sign);
}

function title(notebook: Notebook, viewModel: IViewModel): INode {
  const { id, name } = notebook;
  return div(
    'button',
    'name',
    {
      type: 'button',
      title: name,
      'aria-expanded': `${viewModel.isOpen(id)}`,
      onclick: () => viewModel.toggle(id)
    },
    viewModel.nameOf(notebook)
  );
}

/** A clock that runs here: of the wait, or of the turn. */
function since(session: ISessionView, { snapshot }: IViewModel): string {
  if (session.waiting_seconds !== null) {
    return clock(session.waiting_seconds);
  }
  const turns = snapshot.devices.flatMap(
    device => turnOf(session, device) ?? []
  );
  return turns.length > 0 && runs(session) ? clock(turns[0].held) : '';
}

/**
 * The state of a notebook that is paged out, and does not wait to come back,
 * says how much is on disk.
 */
function reason(session: ISessionView, viewModel: IViewModel): string {
  const comesBack = session.waiting_seconds !== null;
  return joined([
    inIteration(session, viewModel),
    why(session, viewModel) || stateName(session, viewModel.trans),
    progress(session, viewModel.trans),
    comesBack ? onDisk(session.paged_out_bytes, viewModel) : '',
    dueOrIdle(session, viewModel)
  ]);
}

/**
 * For how long it has computed an iteration whose end others wait for; empty if
 * that is not long. overview.py has the same rule.
 */
function inIteration(session: ISessionView, { trans }: IViewModel): string {
  const seconds = session.iteration_seconds ?? 0;
  return seconds >= QUICK_SECONDS
    ? trans.__('in an iteration since %1', clock(seconds))
    : '';
}

/** The reasons in the language of the page; an older broker sends no codes. */
function why({ why, reason }: ISessionView, viewModel: IViewModel): string {
  const { snapshot, nameOf, trans } = viewModel;
  return why?.length
    ? sentence(why, namer(snapshot, nameOf, trans), trans)
    : reason;
}

function joined(parts: string[]): string {
  return parts.filter(Boolean).join(' · ');
}

function onDisk(count: number, { trans }: IViewModel): string {
  return count > 0 ? trans.__('%1 on disk', bytes(count)) : '';
}

/**
 * The pending action of its Jupyter server comes before the actions that were
 * carried out.
 */
function dueOrIdle(notebook: Notebook, viewModel: IViewModel): string {
  const due = (viewModel.snapshot.interventions ?? []).find(
    ({ session }) => session === notebook.id
  );
  return due?.sentence ?? idleFor(notebook, viewModel.trans);
}
