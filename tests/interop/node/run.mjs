// Runs the scenarios of a script, several at a time, each with a time limit. One line of JSON per scenario
// goes to stdout: {"name", "ok", "milliseconds", "error"}. With names as arguments, only these are run.

const scenarioMilliseconds = 30_000;
const concurrency = 4;

export const range = (count) => [...Array(count).keys()];

// `open` gets the scenario's name without spaces, and returns what the scenario is called with; its `client`,
// if there is one, is closed at the end.
export async function runAll(scenarios, open) {
  const waiting = Object.keys(scenarios).filter((name) => process.argv.length < 3 || process.argv.includes(name));
  await Promise.all(
    range(concurrency).map(async () => {
      while (waiting.length) {
        const name = waiting.shift();
        await run(name, scenarios[name], open);
      }
    }),
  );
  process.exit(0);
}

async function run(name, scenario, open) {
  const started = Date.now();
  let timer;
  const tooLong = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`not done after ${scenarioMilliseconds} ms`)), scenarioMilliseconds);
  });
  let error = null;
  try {
    const given = open(name.replace(/[^A-Za-z]+/g, "-"));
    await Promise.race([scenario(given).then(() => given.client?.close()), tooLong]);
  } catch (problem) {
    error = problem?.stack ?? String(problem?.message ?? JSON.stringify(problem));
  }
  clearTimeout(timer);
  console.log(JSON.stringify({ name, ok: error === null, milliseconds: Date.now() - started, error }));
}
