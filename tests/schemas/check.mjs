// `make test-schemas`: objects of Gateway API and Istio against the schemas of their CRDs, as npm packages hold them.
// Usage: node check.mjs FOLDER_WITH_NODE_MODULES FILE...
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { resolve } from "node:path";

const [folder, ...files] = process.argv.slice(2);
const load = createRequire(resolve(folder) + "/");
const gateways = load("@kubernetes-models/gateway-api/gateway.networking.k8s.io/v1");
const istio = load("@kubernetes-models/istio/networking.istio.io/v1beta1"); // v1 has the same fields
const models = {
  "gateway.networking.k8s.io/v1/Gateway": gateways.Gateway,
  "gateway.networking.k8s.io/v1/HTTPRoute": gateways.HTTPRoute,
  "gateway.networking.k8s.io/v1/BackendTLSPolicy": gateways.BackendTLSPolicy,
  "networking.istio.io/v1/DestinationRule": istio.DestinationRule,
};

const counts = { passed: 0, failed: 0, skipped: 0 };
for (const file of files) {
  for (const document of load("js-yaml").loadAll(readFileSync(file, "utf8"))) {
    const Model = models[`${document.apiVersion}/${document.kind}`];
    if (Model === undefined) {
      counts.skipped++;
      continue;
    }
    try {
      new Model({ ...document, apiVersion: document.apiVersion.replace("istio.io/v1", "istio.io/v1beta1") }).validate();
      counts.passed++;
    } catch (error) {
      counts.failed++;
      console.log(`${file}: ${document.kind}: ${error.message}`);
    }
  }
}
console.log(`${counts.passed} passed, ${counts.failed} failed, ${counts.skipped} skipped`);
process.exitCode = counts.failed || !counts.passed ? 1 : 0;
