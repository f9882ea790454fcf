/** Names of notebooks, made so that two of them can be told apart. */

import { fileName } from './format';
import { everyone, Notebook } from './notebook';
import { ISnapshot } from './snapshot';

/** Paths of notebooks by the process of their kernel, as far as this page knows them. */
export type Paths = ReadonlyMap<number, string>;

/**
 * Each notebook's file name, by its id. Notebooks of one file name also get
 * their folder, then the owner, then the process id, as far as needed.
 */
export function namesOf(
  snapshot: ISnapshot,
  paths: Paths
): Map<string, string> {
  const all = new Map(everyone(snapshot).map(one => [one.id, one]));
  const path = (one: Notebook) => paths.get(one.pid) ?? one.name;
  const ways: ((one: Notebook) => string)[] = [
    one => fileName(path(one)),
    one => withFolder(path(one)),
    one => `${withFolder(path(one))} (${one.user})`,
    one => `${withFolder(path(one))} (${one.user}, ${one.pid})`
  ];
  const names = new Map<string, string>();
  let unnamed = [...all.values()];
  for (const way of ways) {
    unnamed.forEach(one => names.set(one.id, way(one)));
    unnamed = unnamed.filter(one =>
      unnamed.some(other => other !== one && way(other) === way(one))
    );
  }
  return names;
}

/** The file and the folder that it lies in. */
function withFolder(path: string): string {
  return path.split('/').slice(-2).join('/');
}
