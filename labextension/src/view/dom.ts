/**
 * Draws descriptions of elements into real ones. An element that has not
 * changed stays the same node, so that focus, selection and scrolling outlive
 * an update. Text only ever enters as text nodes and attributes: a notebook's
 * name cannot be markup.
 */

export type Child = INode | string | null;

/** Attributes by name; `on...` are handlers, `value` is a property, false and null leave one out. */
export interface IProps {
  [name: string]: unknown;
}

export interface INode {
  tag: string;
  props: IProps;
  children: Child[];
  /** Unique among its siblings; without one, nodes are taken in their order. */
  key?: string;
}

const SVG = 'http://www.w3.org/2000/svg';
const SVG_TAGS = ['svg', 'path'];
const drawn = new WeakMap<Node, INode>();

export function h(tag: string, props: IProps, ...children: Child[]): INode {
  const { key, ...rest } = props;
  return { tag, props: rest, children, key: key as string | undefined };
}

/** An element of class `jp-GpuShare-{name}`, and of others after a blank. */
export function div(
  tag: string,
  name: string,
  props: IProps,
  ...children: Child[]
): INode {
  return h(tag, { class: `jp-GpuShare-${name}`, ...props }, ...children);
}

export function button(
  text: string,
  onclick: (event: MouseEvent) => void,
  props: IProps = {}
): INode {
  return div('button', 'button', { type: 'button', onclick, ...props }, text);
}

/** A field of that kind, behind its label. */
export function labelled(
  label: string,
  tag: 'input' | 'select',
  props: IProps,
  ...options: INode[]
): INode {
  return h('label', {}, `${label} `, div(tag, 'input', props, ...options));
}

export function note(text: string, key?: string): INode {
  return div('p', 'note', { key }, text);
}

/** A sentence that says what is wrong; nothing where it is empty. */
export function trouble(text: string, key: string): Child {
  const props = { key, role: 'status' };
  return text ? div('p', 'notice jp-mod-refused', props, text) : null;
}

/** Paths that are stretched to their place; `label` says what they show. */
export function svg(
  name: string,
  label: string,
  viewBox: string,
  ...paths: INode[]
): INode {
  const props = { viewBox, preserveAspectRatio: 'none', role: 'img' };
  return div('svg', name, { ...props, 'aria-label': label }, ...paths);
}

/** Make `children` the content of `root`. */
export function draw(root: Element, children: Child[]): void {
  const focused = root.ownerDocument.activeElement;
  update(root, children);
  // an element that has to move loses the focus
  if (focused !== root.ownerDocument.activeElement && root.contains(focused)) {
    (focused as HTMLElement).focus({ preventScroll: true });
  }
}

/**
 * Let a field show what it was drawn with, not what has been typed into it
 * since.
 */
export function restore(field: Element): void {
  set(field, 'value', drawn.get(field)?.props.value);
}

function update(parent: Element, children: Child[]): void {
  const wanted = children.filter(child => child !== null);
  const known = keyed(parent, wanted);
  let here = parent.firstChild;
  for (const child of wanted) {
    const key = typeof child === 'string' ? undefined : child.key;
    const node = key === undefined ? here : known.get(key);
    const fits = node && isLike(node, child) ? node : create(child);
    if (fits === here) {
      here = here.nextSibling;
    } else {
      parent.insertBefore(fits, here);
    }
    patch(fits, child);
  }
  while (here) {
    const next = here.nextSibling;
    here.remove();
    here = next;
  }
}

/**
 * The children that have keys; those whose key is not wanted any more go at
 * once.
 */
function keyed(
  parent: Element,
  wanted: (INode | string)[]
): Map<string, ChildNode> {
  const known = new Map<string, ChildNode>();
  const keys = new Set<string>();
  for (const child of wanted) {
    if (typeof child !== 'string' && child.key !== undefined) {
      keys.add(child.key);
    }
  }
  let node = keys.size > 0 ? parent.firstChild : null;
  while (node) {
    const next: ChildNode | null = node.nextSibling;
    const key = drawn.get(node)?.key;
    if (key !== undefined && keys.has(key)) {
      known.set(key, node);
    } else if (key !== undefined) {
      node.remove();
    }
    node = next;
  }
  return known;
}

function isLike(node: Node, child: INode | string): boolean {
  const before = drawn.get(node);
  return typeof child === 'string'
    ? node.nodeType === Node.TEXT_NODE
    : before?.tag === child.tag && before.key === child.key;
}

function create(child: INode | string): ChildNode {
  if (typeof child === 'string') {
    return document.createTextNode(child);
  }
  return SVG_TAGS.includes(child.tag)
    ? document.createElementNS(SVG, child.tag)
    : document.createElement(child.tag);
}

function patch(node: ChildNode, child: INode | string): void {
  if (typeof child === 'string') {
    if (node.nodeValue !== child) {
      node.nodeValue = child;
    }
    return;
  }
  const before = drawn.get(node)?.props ?? {};
  drawn.set(node, child);
  update(node as Element, child.children);
  for (const name in child.props) {
    if (before[name] !== child.props[name]) {
      set(node as Element, name, child.props[name]);
    }
  }
  for (const name in before) {
    if (!(name in child.props)) {
      set(node as Element, name, null);
    }
  }
}

function set(node: Element, name: string, value: unknown): void {
  if (name.startsWith('on') || name === 'value') {
    (node as unknown as IProps)[name] = value ?? null;
  } else if (value === undefined || value === null || value === false) {
    node.removeAttribute(name);
  } else {
    node.setAttribute(name, value === true ? '' : String(value));
  }
}
