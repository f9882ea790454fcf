import { beforeEach, describe, expect, it, vi } from 'vitest';
import { draw, h } from '../src/view/dom';

let root: HTMLElement;

beforeEach(() => {
  root = document.createElement('div');
  document.body.replaceChildren(root);
});

const rows = (...keys: string[]) => keys.map(key => h('button', { key }, key));

describe('draw', () => {
  it('keeps a node whose description is the same, and its text', () => {
    draw(root, [h('p', {}, 'a'), 'text']);
    const [paragraph, text] = root.childNodes;
    draw(root, [h('p', { class: 'x' }, 'b'), 'other']);
    expect([...root.childNodes]).toEqual([paragraph, text]);
    expect(root.innerHTML).toBe('<p class="x">b</p>other');
  });

  it('moves nodes by their keys, and removes those that are not wanted', () => {
    draw(root, rows('a', 'b', 'c'));
    const [a, b, c] = root.childNodes;
    draw(root, rows('c', 'd', 'a'));
    expect(root.textContent).toBe('cda');
    expect(root.childNodes[0]).toBe(c);
    expect(root.childNodes[2]).toBe(a);
    expect(b.isConnected).toBe(false);
  });

  it('leaves the focus where it is, whatever moves around it', () => {
    draw(root, rows('a', 'b', 'c'));
    (root.childNodes[1] as HTMLElement).focus();
    draw(root, rows('c', 'new', 'b'));
    expect(document.activeElement).toBe(root.childNodes[2]);
    draw(root, rows('b', 'c'));
    expect(document.activeElement).toBe(root.childNodes[0]);
  });

  it('sets, changes and removes attributes and handlers', () => {
    const clicked = vi.fn();
    draw(root, [h('button', { id: 'x', inert: true, onclick: clicked })]);
    const button = root.firstChild as HTMLElement;
    button.click();
    draw(root, [h('button', { id: false })]);
    button.click();
    expect(clicked).toHaveBeenCalledTimes(1);
    expect(button.outerHTML).toBe('<button></button>');
  });

  it('chooses the option that it is given, and leaves typed text', () => {
    const choice = (value: string) =>
      h('select', { value }, h('option', {}, 'x'), h('option', {}, 'y'));
    draw(root, [choice('y'), h('input', { value: '1' })]);
    const [select, input] = root.children;
    expect((select as HTMLSelectElement).value).toBe('y');
    (input as HTMLInputElement).value = '12';
    draw(root, [choice('y'), h('input', { value: '1' })]);
    expect((input as HTMLInputElement).value).toBe('12');
  });

  it('changes a node into one of another kind', () => {
    draw(root, [h('p', {}, 'a'), h('svg', {}, h('path', { d: 'M0 0' }))]);
    draw(root, [h('svg', {}), h('p', {}, 'b')]);
    expect(root.firstElementChild?.namespaceURI).toContain('svg');
    expect(root.children).toHaveLength(2);
  });
});
