// The test's hand inside a client: one JSON command a line on stdin, one JSON answer a line on stdout.
//
// A command is {id, op, ...arguments}. `wait` is understood here: it answers when the client's `show()` fulfils what
// the test describes. Everything else is the client's. What a client says on the console goes to stderr.
import { createInterface } from "node:readline";

for (const name of ["log", "info", "warn", "debug"]) console[name] = console.error;

const write = (value) => process.stdout.write(`${JSON.stringify(value)}\n`);

export function drive(client) {
  const waiting = new Set();
  const changed = () => {
    for (const one of [...waiting]) {
      const shown = client.show();
      if (holds(shown, one.until)) {
        waiting.delete(one);
        write({ id: one.id, value: shown });
      }
    }
  };
  // A client tells of most changes; what it does not tell of is found soon after.
  setInterval(changed, 10);
  process.on("unhandledRejection", (error) => client.unhandled?.(String(error)));
  createInterface({ input: process.stdin })
    .on("line", async (line) => {
      const { id, op, ...given } = JSON.parse(line);
      if (op === "wait") {
        waiting.add({ id, until: given.until });
        return changed();
      }
      try {
        const value = await client[op](given);
        write({ id, value: value === undefined ? client.show() : value });
      } catch (error) {
        write({ id, error: String(error?.message ?? error) });
      }
    })
    .on("close", () => process.exit(0)); // keep-alive sockets would hold it open
  write({ ready: true });
}

// Every key of `until` must be equal in what is shown; `text` must be contained.
function holds(shown, until) {
  return Object.entries(until).every(([key, wanted]) =>
    key === "text" ? JSON.stringify(shown).includes(JSON.stringify(wanted).slice(1, -1)) : same(shown[key], wanted),
  );
}

const same = (a, b) => JSON.stringify(a) === JSON.stringify(b);
