// Elements of the page. Children are text nodes: no text from a run is parsed as HTML.

const SVG = 'http://www.w3.org/2000/svg';

function filled(element, properties, children) {
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith('on')) {
      element.addEventListener(name.slice(2), value);
    } else if (name === 'style') {
      for (const [key, item] of Object.entries(value)) element.style.setProperty(key, item);
    } else {
      element.setAttribute(name, value === true ? '' : value);
    }
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return element;
}

// No line breaks between a number and its unit, and inside `r = 2`.
const UNIT = /(\d) (?=(?:[um]?s|[kMG]?B(?:\/s)?|%)(?!\w))/g;
const THREADS = /\br = (?=\d)/g;

function unbroken(child) {
  if (Array.isArray(child)) return child.map(unbroken);
  return typeof child === 'string' ? child.replace(UNIT, '$1\u00a0').replace(THREADS, 'r\u00a0=\u00a0') : child;
}

/** An HTML element with attributes, listeners (`onclick`) and children. */
export function h(tag, properties, ...children) {
  // Options keep their plain text, by which tests and browsers find them.
  return filled(document.createElement(tag), properties, tag === 'option' ? children : children.map(unbroken));
}

/** An SVG element, same as `h`. */
export function s(tag, properties, ...children) {
  return filled(document.createElementNS(SVG, tag), properties, children);
}

/** A `<select>` of [value, text] pairs. */
export function choice(label, options, value, onchange, properties = {}) {
  const select = h(
    'select',
    {...properties, 'aria-label': label, onchange: () => onchange(select.value)},
    options.map(([key, text]) => h('option', {value: key, selected: key === value}, text)),
  );
  return h('label', {class: 'choice'}, h('span', {}, label), select);
}

/** List of many rows of equal height; only visible rows are in the document. */
export function longList(count, rowHeight, row, properties = {}) {
  const rows = h('div', {class: 'rows'});
  const filler = h('div', {class: 'filler', style: {height: `${count * rowHeight}px`}}, rows);
  const list = h('div', {...properties, class: `long-list ${properties.class ?? ''}`}, filler);
  let shown = '';
  const draw = () => {
    const height = list.clientHeight || 320;
    const first = Math.max(Math.floor(list.scrollTop / rowHeight) - 5, 0);
    const last = Math.min(Math.ceil((list.scrollTop + height) / rowHeight) + 5, count);
    if (shown === `${first}-${last}`) return;
    shown = `${first}-${last}`;
    rows.style.setProperty('transform', `translateY(${first * rowHeight}px)`);
    rows.replaceChildren(...Array.from({length: last - first}, (_, i) => row(first + i)));
  };
  list.addEventListener('scroll', () => requestAnimationFrame(draw));
  draw();
  return list;
}

/** Box next to the pointer. */
export class Tooltip {
  constructor() {
    this.element = h('div', {class: 'tooltip', role: 'tooltip', hidden: true});
    document.body.append(this.element);
  }

  show(event, ...content) {
    this.element.replaceChildren(...content);
    this.element.hidden = false;
    const {width, height} = this.element.getBoundingClientRect();
    const x = Math.min(event.clientX + 14, window.innerWidth - width - 8);
    const below = event.clientY + 18 + height < window.innerHeight;
    const y = below ? event.clientY + 18 : event.clientY - height - 12;
    this.element.style.setProperty('transform', `translate(${Math.max(x, 4)}px, ${y}px)`);
  }

  hide() {
    this.element.hidden = true;
  }
}
