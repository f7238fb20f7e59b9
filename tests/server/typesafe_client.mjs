// Asks the server at TYPESAFE_BASE_URL one question of each type with the official JavaScript client, and prints what it parsed.
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const installed = createRequire(pathToFileURL(process.cwd() + "/"));
const { TypeSafeClient } = installed("@typesafe-ai/sdk");
const client = new TypeSafeClient();
const response = await client.systemOne({
  state: { document: "I was charged twice. Please fix this. ".repeat(120) },
  questions: {
    refund: { type: "noul", instructions: "Does the customer want money back?" },
    category: { type: "choice", instructions: "What is it about?", criteria: { billing: null, "caf\u00e9": null, "cafe\u0301": null } },
    anger: { type: "score", instructions: "How angry?", criteria: ["calm", "angry", "furious"] },
  },
});
const question = { type: "noul", instructions: "Is it late?" };
const unknown = await client.systemOne({ state: "x", questions: { question }, model: "none" }).catch((error) => error.status);
console.log(JSON.stringify({ model: response.model, answers: response.answers, unknown }));
