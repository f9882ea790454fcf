import { ISessionContext } from '@jupyterlab/apputils';
import { DocumentRegistry } from '@jupyterlab/docregistry';
import { Signal } from '@lumino/signaling';
import { beforeEach, describe, expect, it } from 'vitest';
import { Cells, INotebookPanel } from '../src/lab/cells';
import { english } from '../src/state/format';

const ENDED = { 'text/plain': 'This cell does not run any more.' };
const LINE = { 'text/plain': 'Takes turns with 11 others.' };

/** A cell whose line was saved while it ran. */
function cell(id: string) {
  const output = { data: LINE, metadata: { jupyter_gpushare: 'runs' } };
  const all = [output];
  return {
    id,
    data: () => all[0].data,
    outputs: {
      length: 1,
      get: () => ({ type: 'display_data', toJSON: () => all[0] }),
      set: (_: number, changed: typeof output) => void (all[0] = changed)
    }
  };
}

const sender = {};
const signal = () => new Signal<object, unknown>(sender);
const settled = () => new Promise(resolve => setTimeout(resolve));

let cells: ReturnType<typeof cell>[];
let sessionContext: ReturnType<typeof contextOf>;
let connect: () => void; // to a kernel, as JupyterLab does after the page has its widget
let isFree: () => void; // that kernel is

function contextOf(ready: Promise<void>) {
  return {
    ready,
    isReady: false,
    session: null as object | null,
    kernelChanged: signal(),
    sessionChanged: signal(),
    statusChanged: signal()
  };
}

function follow(): Cells {
  const model = { cells, contentChanged: signal() };
  return new Cells(
    { content: { widgets: [] } } as unknown as INotebookPanel,
    {
      model,
      sessionContext: sessionContext as unknown as ISessionContext
    } as unknown as DocumentRegistry.Context,
    english
  );
}

beforeEach(() => {
  cells = [cell('a'), cell('b')];
  const ready = new Promise<void>(resolve => (connect = resolve));
  sessionContext = contextOf(ready);
});

function connectToBusyKernel() {
  const info = new Promise<void>(resolve => (isFree = resolve));
  const anyMessage = signal();
  sessionContext.session = { kernel: { info }, anyMessage };
  sessionContext.isReady = true;
  sessionContext.sessionChanged.emit({
    oldValue: null,
    newValue: sessionContext.session
  });
  connect();
  return anyMessage;
}

describe('the saved line of a cell', () => {
  it('says that the cell has ended once the kernel is free, and not before', async () => {
    follow();
    connectToBusyKernel();
    await settled();
    expect(cells[0].data()).toEqual(LINE);
    isFree();
    await settled();
    expect(cells[0].data()).toEqual(ENDED);
  });

  it('says so where no kernel runs', async () => {
    follow();
    connect();
    await settled();
    expect(cells[0].data()).toEqual(ENDED);
  });

  it('says so while another cell runs, whose line goes on', async () => {
    follow();
    const header = { msg_id: '1', msg_type: 'execute_request' };
    connectToBusyKernel().emit({ msg: { header, metadata: { cellId: 'b' } } });
    isFree();
    await settled();
    expect(cells.map(({ data }) => data())).toEqual([ENDED, LINE]);
  });

  it('says so when its kernel is shut down, and not when one is there', async () => {
    follow();
    const header = { msg_id: '1', msg_type: 'execute_request' };
    connectToBusyKernel().emit({ msg: { header, metadata: { cellId: 'a' } } });
    sessionContext.kernelChanged.emit({ oldValue: null, newValue: {} });
    expect(cells[0].data()).toEqual(LINE);
    sessionContext.kernelChanged.emit({ oldValue: {}, newValue: null });
    expect(cells[0].data()).toEqual(ENDED);
  });

  it('stays when another view of the notebook is opened', async () => {
    connectToBusyKernel();
    isFree(); // it was, before the cell
    follow();
    await settled();
    expect(cells[0].data()).toEqual(LINE);
  });
});
