/** Notebooks of a snapshot, and the right to change them; pure. */

import { fileName } from './format';
import {
  IDeviceView,
  IError,
  IRestingView,
  ISessionView,
  ISnapshot,
  IViewer
} from './snapshot';

/** A snapshot, or the error that says why there is none, or nothing yet. */
export type State = ISnapshot | IError | null;

/**
 * A notebook that shares: on a device, or released from it until its next cell.
 */
export type Notebook = ISessionView | IRestingView;

/** Code of the Error that a page tells itself while its own connection is lost. */
export const DISCONNECTED = 'disconnected';

/**
 * Code of the Error for a broker to which the notebooks have not come back yet.
 */
export const RECOVERING = 'recovering';

/** Codes of the Errors that end by themselves. */
const PASSING = ['unavailable', 'lost', DISCONNECTED, RECOVERING];

/** Whether a broker or a server answers, but shows this page nothing. */
export function isRefusal({ code }: IError): boolean {
  return !PASSING.includes(code);
}

export const COMING_BACK: IError = {
  type: 'Error',
  code: RECOVERING,
  message: ''
};

export function isSnapshot(state: State): state is ISnapshot {
  return state !== null && 'devices' in state;
}

/**
 * Notebooks that are released until their next cell; an older broker knows of
 * none.
 */
export function resting(device: IDeviceView): IRestingView[] {
  return device.resting ?? [];
}

/** All notebooks of a device. */
export function notebooksOn(device: IDeviceView): Notebook[] {
  return [...device.sessions, ...resting(device)];
}

/** All notebooks of all devices; one that has several devices is there for each. */
export function everyone({ devices }: ISnapshot): Notebook[] {
  return devices.flatMap(notebooksOn);
}

/**
 * The devices of a notebook that has several at once; an older broker knows of
 * none.
 */
export function gang(session: ISessionView): string[] {
  return session.gang ?? [];
}

export function rests(notebook: Notebook): notebook is IRestingView {
  return !('state' in notebook);
}

export function stateOf(notebook: Notebook): string {
  return rests(notebook) ? 'resting' : notebook.state;
}

/** Whether its cell runs, and needs no turn now. */
export function isBusy(notebook: Notebook): boolean {
  return !rests(notebook) && notebook.busy && notebook.state === 'idle';
}

/**
 * The notebook of a kernel, found by its process id, or by the notebook's name if this page does
 * not see the broker's processes. `paths` are those of all notebooks that run here. Null is a
 * notebook that does not share; undefined means that this is not known.
 */
export function ofKernel(
  state: State,
  viewer: IViewer | null,
  kernel: string,
  path: string,
  paths: string[]
): Notebook | null | undefined {
  if (!isSnapshot(state) || viewer === null) {
    return null;
  }
  if (!viewer.sees_processes) {
    return ofName(state, viewer.user, path, paths);
  }
  const pid = viewer.kernels[kernel]; // missing while the kernel is new
  return everyone(state).find(notebook => notebook.pid === pid) ?? null;
}

/**
 * The user's only notebook of this file name; undefined for two, since either
 * could have the path. One that runs in another server of the user is not told
 * apart.
 */
function ofName(
  state: ISnapshot,
  owner: string,
  path: string,
  paths: string[]
): Notebook | null | undefined {
  const file = fileName(path);
  const here = new Set([path, ...paths].filter(one => fileName(one) === file));
  const found = everyone(state).filter(
    ({ name, user }) => name === file && user === owner
  );
  const ids = new Set(found.map(({ id }) => id));
  if (ids.size === 0) {
    return null;
  }
  return here.size === 1 && ids.size === 1 ? found[0] : undefined;
}

/**
 * The session that commands for a kernel's notebook change; null where the
 * viewer may not change it, or where it was found by its name alone. A notebook
 * that is released until its next cell has none.
 */
export function toChange(
  viewer: IViewer | null,
  notebook: Notebook | null
): ISessionView | null {
  return notebook !== null &&
    !rests(notebook) &&
    viewer?.sees_processes &&
    isOwn(viewer, notebook)
    ? notebook
    : null;
}

/** Whether the viewer may change this session. */
export function isOwn(viewer: IViewer | null, session: ISessionView): boolean {
  return (
    viewer !== null &&
    viewer.may_change &&
    (viewer.is_administrator || viewer.user === session.user)
  );
}

/** Whether the viewer may begin classes of a group and set weights of its notebooks. */
export function teaches(
  viewer: IViewer | null,
  { groups }: ISnapshot,
  group: string
): boolean {
  const found = (groups ?? []).find(({ name }) => name === group);
  return (
    viewer !== null &&
    viewer.may_change &&
    found !== undefined &&
    (viewer.is_administrator || found.teachers.includes(viewer.user))
  );
}

/** Whether the viewer may choose the policy. */
export function isAdmin(viewer: IViewer | null): boolean {
  return viewer !== null && viewer.may_change && viewer.is_administrator;
}
