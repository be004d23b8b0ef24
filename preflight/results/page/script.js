'use strict';
// Everything here adds to a page that is whole without it: filter, fold, sort, copy, canvases.
const $ = (query, from = document) => [...from.querySelectorAll(query)];
const byId = id => document.getElementById(id);
const make = (tag, attributes = {}, text = '') => {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.textContent = text;
  return made;
};
const colour = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const WORDS = {P: 'pass', F: 'fail', E: 'error', W: 'warn', S: 'skip', '–': 'none'};
const ORDER = 'FEWS–P';
const redraws = [];
let data = {nodes: [], checks: [], letters: [], plots: []};

async function opened() {
  const bytes = Uint8Array.from(atob(byId('island').textContent.trim()), char => char.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream('gzip'));
  return JSON.parse(await new Response(stream).text());
}

// Ranges of places: "0-7,9"
const holds = (ranges, place) => ranges.split(',').some(part => {
  const [first, last = first] = part.split('-').map(Number);
  return first <= place && place <= last;
});
const places = ranges => ranges.split(',').flatMap(part => {
  const [first, last = first] = part.split('-').map(Number);
  return Array.from({length: last - first + 1}, (_, number) => first + number);
});

// Filter: words with node:, check:, code:, status:, or free text
function wanted(text) {
  const found = {node: [], check: [], code: [], status: [], text: []};
  for (const word of text.trim().split(/\s+/).filter(Boolean)) {
    const [, key, value] = /^(node|check|code|status):(.+)$/.exec(word) || [null, 'text', word];
    found[key].push(value.toLowerCase());
  }
  found.places = found.node.length ? data.nodes.map((name, place) => [name.toLowerCase(), place])
    .filter(([name]) => found.node.includes(name)).map(([, place]) => place) : null;
  return found;
}

function fits(element, want) {
  const own = element.dataset, prefix = (list, value) => !list.length || list.some(word => value.startsWith(word));
  if (own.check !== undefined && want.check.length && own.check && !prefix(want.check, own.check)) return false;
  if (own.code !== undefined && !prefix(want.code, own.code)) return false;
  if (own.status !== undefined && want.status.length && !want.status.includes(own.status)) return false;
  if (want.places && own.nodes && !want.places.some(place => holds(own.nodes, place))) return false;
  if (want.places && !want.places.length && own.nodes) return false;
  if (own.code === undefined) return true;
  const text = element.textContent.toLowerCase();
  return want.text.every(word => text.includes(word));
}

function filter() {
  const text = byId('query').value, want = wanted(text);
  const all = $('[data-nodes]'), findings = $('[data-code]');
  for (const element of all) element.classList.toggle('away', !fits(element, want));
  for (const section of $('main > section')) {
    const figures = $('figure', section);
    section.classList.toggle('away', figures.length > 0 && figures.every(figure => figure.classList.contains('away')));
  }
  for (const rest of $('details.rest')) rest.classList.toggle('away', $('[data-code]', rest).every(e => e.classList.contains('away')));
  const left = findings.filter(element => !element.classList.contains('away')).length;
  const nowhere = want.places && !want.places.length ? '; no node has this name' : '';
  byId('shown').textContent = text.trim() ? `${left} of ${findings.length} findings shown${nowhere}` : '';
  history.replaceState(null, '', text.trim() ? `#filter=${encodeURIComponent(text.trim())}` : location.href.split('#')[0]);
  markStrips(want.places);
}

function choose(query) {
  byId('query').value = byId('query').value.trim() === query ? '' : query;
  filter();
}

// The values of the chosen nodes on every strip
function markStrips(chosen) {
  $('.chosen').forEach(old => old.remove());
  if (!chosen || !chosen.length) return;
  const names = new Set(chosen.map(place => data.nodes[place]));
  for (const figure of $('.k-strips')) {
    const plot = data.plots[figure.dataset.plot];
    const measured = plot.values.filter(values => values.some(value => value !== null));
    $('.strip', figure).forEach((strip, number) => {
      const [least, most, from, to] = ['least', 'most', 'from', 'to'].map(key => Number(strip.dataset[key]));
      plot.subjects.forEach(([node, name], subject) => {
        const value = (measured[number] || [])[subject];
        if (!names.has(node) || value === null || value === undefined) return;
        const mark = document.createElementNS('http://www.w3.org/2000/svg', 'circle');
        const at = from + (value - least) / (most - least) * (to - from);
        for (const [key, its] of [['cx', at], ['cy', 38], ['r', 6], ['class', 'chosen']]) mark.setAttribute(key, its);
        const title = document.createElementNS('http://www.w3.org/2000/svg', 'title');
        title.textContent = `${node} ${name}: ${value}`;
        mark.append(title);
        strip.querySelector('svg').append(mark);
      });
    });
  }
}

// Fold and unfold rows of nodes that are alike
const UNFOLDED = 512;
function fold(button) {
  const row = button.closest('tr'), open = button.getAttribute('aria-expanded') === 'true';
  button.setAttribute('aria-expanded', String(!open));
  button.textContent = open ? '▸' : '▾';
  if (open) {
    while (row.nextElementSibling?.classList.contains('child')) row.nextElementSibling.remove();
    return;
  }
  const cells = $('td', row), all = places(row.dataset.nodes);
  const rows = all.slice(0, UNFOLDED).map(place => {
    const made = make('tr', {class: 'child', 'data-nodes': place});
    const head = make('th', {scope: 'row'});
    head.append(make('button', {type: 'button', 'data-query': `node:${data.nodes[place]}`}, data.nodes[place]));
    made.append(head, ...cells.map(cell => make('td', {class: cell.className}, cell.textContent.trim())));
    return made;
  });
  if (all.length > UNFOLDED) {
    const more = make('tr', {class: 'child'});
    more.append(make('th', {scope: 'row'}, `and ${all.length - UNFOLDED} more`));
    rows.push(more);
  }
  row.after(...rows);
}

// Sort by a column; numbers as numbers
function sortable(table) {
  $('thead th', table).forEach((head, column) => {
    const button = make('button', {type: 'button', title: 'sort'}, head.textContent || '·');
    head.textContent = '';
    head.append(button);
    button.addEventListener('click', () => {
      const up = head.getAttribute('aria-sort') !== 'ascending';
      $('thead th', table).forEach(other => other.removeAttribute('aria-sort'));
      head.setAttribute('aria-sort', up ? 'ascending' : 'descending');
      const body = table.tBodies[0], value = row => row.cells[column]?.textContent ?? '';
      const rows = [...body.rows].sort((a, b) => value(a).localeCompare(value(b), 'en', {numeric: true}));
      body.append(...(up ? rows : rows.reverse()));
    });
  });
  const save = make('button', {type: 'button', class: 'small'}, 'CSV');
  save.addEventListener('click', () => {
    const quoted = cell => `"${cell.textContent.trim().replaceAll('"', '""')}"`;
    const text = [...table.rows].map(row => [...row.cells].map(quoted).join(',')).join('\n');
    const link = make('a', {download: `${table.dataset.name.replace(/[^\w.-]+/g, '_')}.csv`});
    link.href = URL.createObjectURL(new Blob([text], {type: 'text/csv'}));
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  });
  table.parentElement.after(save);
}

async function copy(button) {
  const text = button.dataset.copy, before = button.textContent;
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = make('textarea');
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand('copy');
    area.remove();
  }
  button.textContent = 'Copied';
  setTimeout(() => { button.textContent = before; }, 1500);
}

// A canvas of cells: by mouse and by arrow keys one of them is told, Enter or a click chooses its node
function grid(canvas, columns, rows, size, paint, tell, query) {
  const read = canvas.closest('section, figure').querySelector('.read');
  let at = [0, 0];
  const draw = cursor => {
    canvas.width = columns * size[0];
    canvas.height = rows * size[1];
    const to = canvas.getContext('2d');
    to.fillStyle = colour('--card');
    to.fillRect(0, 0, canvas.width, canvas.height);
    paint(to);
    if (cursor) {
      to.strokeStyle = colour('--fg');
      to.lineWidth = 2;
      to.strokeRect(at[0] * size[0] - 1, at[1] * size[1] - 1, size[0] + 2, size[1] + 2);
    }
  };
  const move = (column, row, cursor) => {
    at = [Math.max(0, Math.min(columns - 1, column)), Math.max(0, Math.min(rows - 1, row))];
    read.textContent = tell(...at);
    if (cursor) draw(true);
  };
  const place = event => {
    const box = canvas.getBoundingClientRect();
    return [Math.floor((event.clientX - box.left) / box.width * columns), Math.floor((event.clientY - box.top) / box.height * rows)];
  };
  canvas.addEventListener('mousemove', event => move(...place(event), false));
  canvas.addEventListener('click', event => { move(...place(event), true); choose(query(...at)); });
  canvas.addEventListener('keydown', event => {
    const step = {ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1]}[event.key];
    if (step) { event.preventDefault(); move(at[0] + step[0], at[1] + step[1], true); }
    if (event.key === 'Enter') choose(query(...at));
  });
  redraws.push(() => draw(false));
  draw(false);
}

const WIDE = 1024;
function allNodes(canvas) {
  const count = data.nodes.length, each = Math.ceil(count / WIDE), columns = Math.ceil(count / each);
  const worst = (row, column) => [...data.letters[row].slice(column * each, (column + 1) * each)]
    .reduce((a, b) => ORDER.indexOf(b) < ORDER.indexOf(a) ? b : a, 'P');
  const size = [Math.max(1, Math.floor(1024 / columns)), 12];
  const paint = to => data.letters.forEach((_, row) => {
    for (let column = 0; column < columns; column++) {
      const letter = worst(row, column);
      to.globalAlpha = letter === 'P' ? 0.3 : 1;
      to.fillStyle = colour(`--${WORDS[letter]}`);
      const grow = 'FEW'.includes(letter) ? Math.max(size[0], 2) : size[0];
      to.fillRect(column * size[0], row * 12 + (letter === 'W' ? 4 : 0), grow, letter === 'W' ? 7 : 11);
    }
    to.globalAlpha = 1;
  });
  const name = column => data.nodes[column * each] + (each > 1 ? ` to ${data.nodes[Math.min(count, (column + 1) * each) - 1]}` : '');
  const sick = (row, column) => {
    const first = column * each;
    const at = [...data.letters[row].slice(first, first + each)].findIndex(letter => letter === worst(row, column));
    return data.nodes[first + Math.max(0, at)];
  };
  grid(canvas, columns, data.checks.length, size, paint,
    (column, row) => `${name(column)}, ${data.checks[row]}: ${{none: 'not measured'}[WORDS[worst(row, column)]] || WORDS[worst(row, column)]}`,
    (column, row) => `node:${sick(row, column)}`);
}

function heat(canvas) {
  const plot = data.plots[canvas.dataset.plot], columns = plot.columns.length, rows = plot.rows.length;
  const size = [Math.max(1, Math.min(24, Math.floor(1024 / columns))), Math.max(1, Math.min(24, Math.floor(1024 / Math.max(columns, rows / 2))))];
  const found = new Map();
  for (let i = 0; i < plot.cells.length; i += 3) found.set(plot.cells[i] * columns + plot.cells[i + 1], plot.cells[i + 2]);
  const paint = to => {
    const levels = [0, 1, 2, 3, 4].map(level => colour(`--h${level}`)), slow = [];
    for (const [place, value] of found) {
      const column = place % columns, row = (place - column) / columns;
      to.fillStyle = levels[Math.min(4, Math.max(0, Math.floor(5 * value / plot.usual)))];
      to.fillRect(column * size[0], row * size[1], size[0], size[1]);
      if (value < plot.limit) slow.push([column, row]);
    }
    to.strokeStyle = colour('--slow');
    to.lineWidth = 1.5;
    const far = Math.max(0, 6 - size[0]) / 2;
    for (const [column, row] of slow) to.strokeRect(column * size[0] - far, row * size[1] - far, size[0] + 2 * far, size[1] + 2 * far);
  };
  grid(canvas, columns, rows, size, paint, (column, row) => {
    const value = found.get(row * columns + column);
    const told = value === undefined ? 'not tried' : `${value} ${plot.unit}, ${Math.round(100 * value / plot.usual)} % of the usual`;
    return `${plot.rows[row]} to ${plot.columns[column]}: ${told}${value < plot.limit ? ', slow' : ''}`;
  }, (column, row) => `node:${plot.rows[row].split(' to ')[0]}`);
}

function theme() {
  const root = document.documentElement, dark = matchMedia('(prefers-color-scheme: dark)').matches;
  const now = root.dataset.theme || (dark ? 'dark' : 'light');
  root.dataset.theme = now === 'dark' ? 'light' : 'dark';
  redraws.forEach(redraw => redraw());
}

async function begin() {
  data = await opened();
  document.documentElement.classList.add('js');
  document.addEventListener('click', event => {
    const button = event.target.closest('button');
    if (!button) return;
    if (button.dataset.query) choose(button.dataset.query);
    else if (button.classList.contains('fold')) fold(button);
    else if (button.dataset.copy !== undefined) copy(button);
  });
  $('table.sortable').forEach(sortable);
  byId('theme')?.addEventListener('click', theme);
  const query = byId('query');
  if (query) {
    query.addEventListener('input', filter);
    byId('filter').addEventListener('submit', event => event.preventDefault());
    byId('clear').addEventListener('click', () => { query.value = ''; filter(); query.focus(); });
    const linked = /^#filter=(.*)$/.exec(location.hash);
    if (linked) { query.value = decodeURIComponent(linked[1]); filter(); }
  }
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => redraws.forEach(redraw => redraw()));
  if (byId('all-nodes')) allNodes(byId('all-nodes'));
  $('canvas.heat').forEach(heat);
  document.documentElement.dataset.ready = 'yes';
}
begin();
