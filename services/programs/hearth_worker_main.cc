// The program hearth-worker: serves one Gemma 3 model, with KV prefixes from a store.

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "proto/utf8.h"
#include "services/cli/base_model.h"
#include "services/cli/version.h"
#include "services/inference/inference_service.h"
#include "services/inference/worker_metrics.h"
#include "services/inference/worker_status.h"
#include "services/openai/openai_server.h"
#include "services/programs/store_link.h"
#include "services/serving/access/server_access.h"
#include "services/serving/calls/admission.h"
#include "services/serving/calls/call_log.h"
#include "services/serving/flags.h"
#include "services/serving/logging.h"
#include "services/serving/metrics.h"
#include "services/serving/process.h"
#include "services/serving/server/serving.h"
#include "worker/engine/engine.h"
#include "worker/kernels/targets.h"
#include "worker/model/gguf.h"
#include "worker/text/tokenizer_loader.h"

namespace hearth {
namespace {

constexpr char kProgram[] = "hearth-worker";
constexpr char kAbout[] =
    "Serves a Gemma 3 model over gRPC. Prefixes that any worker computed before are restored from\n"
    "the store instead of computed again; the answer is the same, bit for bit.";
constexpr char kExamples[] =
    "Every flag can also come from the environment (HEARTH_WORKER_MODEL=DIR) or from the file of\n"
    "--config (model = \"DIR\"). The command line overrides the environment, and the environment\n"
    "overrides the file.\n\n"
    "Examples:\n"
    "  hearth-worker --model models/gemma-3-270m.gguf --store 127.0.0.1:7080\n"
    "  hearth-worker --model models/gemma-3-270m.gguf --store embedded:data   # one machine\n"
    "  hearth-worker --model models/gemma-3-270m.gguf --store none            # no cache\n"
    "  hearth-worker --model DIR --store store:7080 --device cuda --chunk-tokens 512\n";

struct WorkerFlags {
  ServerFlags server;
  EngineOptions engine;
  std::string store = "127.0.0.1:7080";
  StoreOptions embedded;
  bool shared_memory = true;
  ClientAccess store_access{"", "", "", "", false, "store-", true};
  uint32_t threads = 0;
  bool strict_chats = false;
  ChatTemplateChoice chat_template = ChatTemplateChoice::kAuto;
  bool ignores_generation_config = false;
  std::string default_sampling;
  std::string http_listen, http_address_file, http_model, http_hosts, http_origins;
  std::string trusted_proxies;
};

// Returns the default folder for weight digests: in the user's cache folder, because they can be
// computed again.
std::string DefaultDigestCache() {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  if (cache != nullptr && *cache != '\0') return absl::StrCat(cache, "/hearth");
  const char* home = std::getenv("HOME");
  if (home != nullptr && *home != '\0') return absl::StrCat(home, "/.cache/hearth");
  return "";
}

// Adds the flags for the number formats of the exactness class `invariant`.
void AddInvariantFlags(FlagSet* set, EngineOptions* engine) {
  set->AddChoice("weights", &engine->weights, {"auto", "float32", "stored", "q8_0", "q4_0"},
                 "Form of the weights (exactness class invariant). stored: the checkpoint's bits; "
                 "float32: widened, same answers; q8_0, q4_0: 8 or 4 bits, other answers, prefixes "
                 "shared only with the same form; auto: stored");
  set->AddChoice(
      "arithmetic", &engine->arithmetic, {"float32", "int8", "bf16", "auto"},
      "Numbers that matrix products multiply (exactness class invariant). float32; int8: integers "
      "for matrices in blocks (of a GGUF file, or by --weights); bf16: bfloat16 as GPUs of compute "
      "capability 9.0 compute it, for bfloat16 checkpoints, slow on a CPU; prefixes shared only "
      "with the same arithmetic; auto: int8 if the model has a matrix in blocks, else float32");
  set->AddChoice("kv-dtype", &engine->kv_dtype, {"float32", "bfloat16", "auto"},
                 "Type of keys and values (exactness class invariant). float32; bfloat16: rounded "
                 "when written, half the bytes, other answers, prefixes shared only with bfloat16; "
                 "auto: bfloat16 unless products are in float32");
}

constexpr char kDeviceHelp[] =
    "cpu, cuda or cuda:N; emulated: the programs for GPUs run on the CPU and give the CPU's "
    "answers, for tests and for work on these programs without a GPU: a token of the 270M takes "
    "a second";

void AddKvFlags(FlagSet* set, EngineOptions* engine) {
  set->AddText(
      "kv-cache", &engine->kv.cache,
      "KV cache strategy of requests that do not set one. dynamic; static: all memory is "
      "allocated at a request's first step; quantized: whole chunks in fewer bits, other "
      "answers; offloaded and offloaded_static: on a device, whole chunks of global layers "
      "in host memory, else same as dynamic and static; empty: from the model's "
      "generation_config.json, else dynamic");
  set->AddText("kv-quantization", &engine->kv.quantization,
               "Options of the quantized strategy: "
               "bits=4,group=64,axis_key=-1,axis_value=0,residual=128 (a chunk)");
}

void AddEngineFlags(FlagSet* set, WorkerFlags* flags) {
  EngineOptions* engine = &flags->engine;
  set->AddRequired("model", &engine->model_dir, "Gemma 3: a Hugging Face folder, or a GGUF file");
  set->AddText("device", &engine->device, kDeviceHelp);
  set->AddText("dtype", &engine->dtype, "auto, float32 or bfloat16");
  set->AddUint(
      "chunk-tokens", &engine->chunk_tokens,
      "Tokens per chunk, a power of two from 16 to 1024; must be equal on all workers of a store");
  set->AddChoice(
      "exactness", &engine->exactness, {"auto", "invariant", "exact", "portable"},
      "Exactness class: how equal answers are, and who shares prefixes. invariant: bits depend "
      "only on the tokens, prefixes shared by all CPUs; exact: same bits with the cache as "
      "without, prefixes shared by equal machines; portable: equal within rounding, prefixes "
      "shared by all machines; auto: invariant if the CPU supports it, else exact. On cuda, "
      "invariant needs a bfloat16 or quantized checkpoint, and auto is exact");
  AddInvariantFlags(set, engine);
  AddKvFlags(set, engine);
  set->AddNamed("adapter", &engine->adapters,
                "NAME=DIR, repeatable: a LoRA adapter in the format of PEFT; requests select it by "
                "NAME (exactness class invariant)");
  set->AddUint("threads", &flags->threads, "Number of compute threads; 0: one for each core");
  set->AddBytes(
      "kv-bytes", &engine->memory.kv_bytes,
      "Memory for keys and values of running requests. 0: in the class invariant, half of the "
      "memory minus weights and pool; on a device, three quarters of its free memory");
  set->AddBytes("kv-offload-bytes", &engine->memory.kv_offload_bytes,
                "Host memory for keys and values of offloaded requests on a device. 0: half of the "
                "memory minus pool");
  set->AddBytes("pool-bytes", &engine->memory.pool_bytes,
                "Memory for restored prefixes kept in the worker; 0: none");
  set->AddUint("max-running", &engine->max_running,
               "Limit of requests computed at the same time; 0: 16 in the class invariant, else 8");
  set->AddUint("step-tokens", &engine->step_tokens,
               "Limit of tokens per step while requests decode (exactness class invariant). Fewer: "
               "less time between tokens; more: prompts finish sooner; 0: one chunk");
  set->AddUint(
      "speculate", &engine->speculate,
      "Tokens to guess from the text and verify in one step (0 to 15), for requests that set none "
      "(exactness class invariant). Same answers, fewer steps if the text repeats; 0: none");
  set->AddUint("max-queue", &engine->max_queued,
               "Maximum number of waiting requests; further requests are refused");
  set->AddBytes(
      "staging-bytes", &engine->memory.staging_bytes,
      "Memory for prefixes that wait to be published; 0: two tails of the model, at least 1 GiB");
  set->AddDuration("fetch-budget", &engine->cache.fetch_budget,
                   "Time limit of a fetch from the store; after it, the prefix is computed");
  set->AddChoice("load", &engine->cache.load, {"auto", "always", "never"},
                 "auto: load a stored prefix if that is predicted to be faster than computing it; "
                 "always: load it; never: compute and publish it");
  set->AddDuration(
      "compute-wait", &engine->cache.compute.wait,
      "Maximum wait for another worker that computes the same prefix; 0s: compute it at once");
  set->AddDuration("compute-lease", &engine->cache.compute.lease,
                   "Maximum time that other workers wait for a prefix that this worker computes; "
                   "0s: they do not wait");
  set->AddUint("compute-min-tokens", &engine->cache.compute.min_tokens,
               "Shorter prefixes are computed without asking whether another worker computes them");
  set->AddShare("audit-rate", &engine->cache.audit_rate,
                "Fraction (0 to 1) of restored prefixes that an idle worker computes again to "
                "check them; wrong prefixes are quarantined in the store");
  set->AddDuration("publish-timeout", &engine->cache.publish_timeout, "Time limit of a publish");
  set->AddText("digest-cache", &engine->digest_cache_dir,
               "Folder of cached weight digests; empty: compute them at each start");
}

void AddHttpFlags(FlagSet* set, WorkerFlags* flags) {
  set->AddText("http-listen", &flags->http_listen,
               "Serve OpenAI's API and a chat page over HTTP on HOST:PORT, with the certificate of "
               "--tls-cert; empty: off");
  set->AddText("http-address-file", &flags->http_address_file,
               "Write the HTTP address to this file");
  set->AddText(
      "http-model", &flags->http_model,
      "Name of the model over HTTP; empty: the name of its folder, or of its file without .gguf");
  set->AddChoice("generation-config", &flags->ignores_generation_config, {"auto", "none"},
                 "Default temperature, top_k and top_p of HTTP requests. auto: from the model's "
                 "generation_config.json, else OpenAI's; none: OpenAI's. A gRPC request is greedy "
                 "unless it asks for these defaults");
  set->AddText("default-sampling", &flags->default_sampling,
               "Overrides of the defaults of --generation-config, one or more: "
               "temperature=0.7,top_k=40,top_p=0.9");
  set->AddText("http-hosts", &flags->http_hosts,
               "Comma-separated names by which callers reach HTTP and the metrics, in addition to "
               "localhost, IP addresses and the name in --http-listen; *: all");
  set->AddText("http-origins", &flags->http_origins,
               "Comma-separated sites whose pages may call the HTTP API "
               "(https://chat.example.com), in addition to the worker's own; *: all");
  set->AddText("trusted-proxies", &flags->trusted_proxies,
               "Comma-separated CIDR blocks (10.0.0.0/8,fd00::/8) of proxies in front of "
               "--http-listen; their connections are not closed to make room for others");
}

// Describes the kernels that this CPU runs, for --version.
std::string KernelsLine() {
  std::string usable;
  for (const KernelTarget target : UsableTargets()) {
    absl::StrAppend(&usable, usable.empty() ? "" : ", ", KernelTargetName(target));
  }
  return absl::StrCat("kernels ", KernelTargetName(ChosenTarget()), " on this CPU, which runs ",
                      usable);
}

bool ParseFlags(int argc, char** argv, WorkerFlags* flags, int* exit_code) {
  flags->server.listen = "127.0.0.1:7070";
  flags->engine.digest_cache_dir = DefaultDigestCache();
  FlagSet set(kProgram, "HEARTH_WORKER_", kAbout, kExamples, KernelsLine());
  set.AddServerFlags(&flags->server);
  AddHttpFlags(&set, flags);
  AddEngineFlags(&set, flags);
  set.AddText("store", &flags->store,
              "Address of the store; embedded:DIR: a store in this process; none: no store");
  ClientAccess* access = &flags->store_access;
  set.AddText("store-tls-ca", &access->tls_ca,
              "Connect to the store by TLS; this authority (PEM) signed the store's certificate");
  set.AddText("store-tls-cert", &access->tls_cert, "This worker's certificate for the store (PEM)");
  set.AddText("store-tls-key", &access->tls_key, "Private key of --store-tls-cert (PEM)");
  set.AddText("store-token-file", &access->token_file,
              "File with this worker's token for the store; reloaded when it changes");
  set.AddChoice("store-plaintext-tokens", &access->plaintext_tokens, {"off", "on"},
                "Send the token without TLS to a store on another host");
  set.AddChoice(
      "chat-template", &flags->chat_template, {"auto", "gemma"},
      "auto: render chats with the model's chat template, which needs Python's Jinja if it is not "
      "Gemma's; gemma: render chats with Gemma's template, whatever template the model has");
  set.AddChoice(
      "strict-chats", &flags->strict_chats, {"off", "on"},
      "Treat control tokens in chat messages as text; overrides the `strict` of requests");
  set.AddChoice("store-shared-memory", &flags->shared_memory, {"off", "on"},
                "Read from the shared memory of a store of this host and user");
  set.AddBytes("store-host-bytes", &flags->embedded.host_bytes, "RAM limit of an embedded store");
  set.AddBytes("store-disk-bytes", &flags->embedded.disk_bytes, "Disk limit of an embedded store");
  set.AddBytes("store-max-staged-bytes", &flags->embedded.max_staged_bytes,
               "Memory for publishes that an embedded store is receiving");
  set.AddDuration("store-default-ttl", &flags->embedded.default_ttl,
                  "Time to live of restore points of an embedded store that are published without "
                  "one; 0s: until evicted");
  if (!set.Parse(argc, argv, exit_code)) return false;
  absl::StrAppend(&flags->server.metrics_hosts, ",", flags->http_hosts);
  flags->engine.threads = static_cast<int>(flags->threads);
  return true;
}

// Returns the flags that ask for memory, with their values, for errors.
std::vector<std::string> AskedMemory(const WorkerFlags& flags) {
  const auto text = [](const char* flag, uint64_t bytes) {
    return absl::StrCat("--", flag, "=", FormatByteSize(bytes));
  };
  const auto& memory = flags.engine.memory;
  std::vector<std::string> asked = {
      absl::StrCat("--model=", flags.engine.model_dir), text("kv-bytes", memory.kv_bytes),
      text("pool-bytes", memory.pool_bytes), text("staging-bytes", memory.staging_bytes)};
  if (absl::StartsWith(flags.store, "embedded:")) {
    asked.push_back(text("store-host-bytes", flags.embedded.host_bytes));
    asked.push_back(text("store-max-staged-bytes", flags.embedded.max_staged_bytes));
  }
  return asked;
}

// Checks the flags before the model is loaded, which takes minutes.
absl::Status CheckStart(const WorkerFlags& flags) {
  if (absl::Status status = flags.engine.Validate(); !status.ok()) return status;
  struct stat info {};
  const std::string& model = flags.engine.model_dir;
  if (!IsGgufFile(model) && (stat(model.c_str(), &info) != 0 || !S_ISDIR(info.st_mode))) {
    return absl::NotFoundError(
        absl::StrCat("--model: ", model,
                     " is not a folder or a GGUF file; if it is a model id of a hub, download the "
                     "model (hf download) and pass its folder"));
  }
  const auto sampling = ParseDefaultSampling(flags.default_sampling);
  if (!sampling.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--default-sampling: ", sampling.status().message()));
  }
  if (const auto proxies = Cidr::ParseList(flags.trusted_proxies); !proxies.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--trusted-proxies: ", proxies.status().message()));
  }
  if (absl::Status status = CheckPorts(flags.server); !status.ok()) return status;
  return flags.http_listen.empty() ? absl::OkStatus() : CheckPort("http-", flags.http_listen);
}

std::vector<std::string> NotesOf(const WorkerFlags& flags, const Engine& engine,
                                 const LoadedTokenizer& tokenizer) {
  std::vector<std::string> notes = engine.config().notes;
  const std::string base = BaseModelNote(flags.engine.model_dir, flags.http_model);
  if (!base.empty()) notes.push_back(base);
  for (std::string& note : engine.notes()) notes.push_back(std::move(note));
  notes.insert(notes.end(), tokenizer.notes.begin(), tokenizer.notes.end());
  return notes;
}

void LogLoaded(const WorkerFlags& flags, const Engine& engine, const LoadedTokenizer& tokenizer,
               absl::Duration took) {
  Log(LogLevel::kInfo, "loaded",
      {{"model", flags.engine.model_dir},
       {"device", engine.device()},
       {"dtype", engine.dtype()},
       {"exactness", ExactnessName(engine.layout().exactness)},
       {"chunk_tokens", engine.layout().chunk_tokens},
       {"fingerprint", DigestHex(engine.fingerprint().digest())},
       {"tokenizer",
        tokenizer.tokenizer == nullptr ? "none: " + tokenizer.why_none : tokenizer.file},
       {"store", flags.store},
       {"took_ms", absl::ToInt64Milliseconds(took)}});
}

// Returns a model's name: the name of its folder, or of its file without .gguf.
std::string NameOf(absl::string_view path) {
  while (absl::ConsumeSuffix(&path, "/")) {
  }
  absl::ConsumeSuffix(&path, ".gguf");
  return std::string(path.substr(path.rfind('/') + 1));
}

std::string ModelName(const WorkerFlags& flags) {
  return flags.http_model.empty() ? NameOf(flags.engine.model_dir) : flags.http_model;
}

std::vector<std::string> Words(const std::string& list) {
  return absl::StrSplit(list, ',', absl::SkipWhitespace());
}

// Opens the HTTP server; null if --http-listen is empty.
absl::StatusOr<std::unique_ptr<OpenAiServer>> OpenHttp(const WorkerFlags& flags,
                                                       Generator* generator, Admission* admission,
                                                       const ServerAccess& access) {
  if (flags.http_listen.empty()) return nullptr;
  OpenAiOptions options;
  options.http.listen = flags.http_listen;
  options.http.budget_bytes = flags.server.unfinished_bytes;
  options.http.hosts = Words(flags.http_hosts);
  options.http.trusted_proxies = *Cidr::ParseList(flags.trusted_proxies);
  if (access.certificates != nullptr) {
    options.http.tls = [certificates = access.certificates.get()] { return certificates->texts(); };
  }
  options.generator = generator;
  options.admission = admission;
  options.model = ModelName(flags);
  options.model_note = BaseModelNote(flags.engine.model_dir, flags.http_model);
  options.version = kVersion;
  options.origins = Words(flags.http_origins);
  options.failure = &DeviceFailure;
  auto door = OpenAiServer::Open(std::move(options));
  if (!door.ok()) return door.status();
  Log(LogLevel::kInfo, "serving OpenAI's API", {{"address", (*door)->address()}});
  if (flags.http_address_file.empty()) return door;
  const absl::Status written = WriteFileWhole(flags.http_address_file, (*door)->address());
  if (!written.ok()) return written;
  return door;
}

GeneratorOptions GenerationOf(const WorkerFlags& flags, const LoadedTokenizer& tokenizer,
                              const StoreLink& link, Metrics* metrics, WorkerStatus* status) {
  GeneratorOptions options;
  if (RemotePrefixCache* const cache = link.cache()) {
    options.explain = [cache](PrefixRequest prefix, absl::Time deadline, auto done) {
      cache->Explain(std::move(prefix), deadline, std::move(done));
    };
  }
  options.tokenizer = tokenizer.tokenizer.get();
  options.why_no_tokenizer = tokenizer.why_none;
  options.why_no_chats = tokenizer.why_no_chats;
  options.chat_template = tokenizer.chat_template.get();
  options.strict_chats = flags.strict_chats;
  options.generation_config = !flags.ignores_generation_config;
  options.default_sampling = *ParseDefaultSampling(flags.default_sampling);
  options.on_finished = [metrics, status](const FinishedInfo& info) {
    metrics->RecordGeneration("queue", info.queue_ms / 1e3);
    metrics->RecordGeneration("fetch", info.fetch_ms / 1e3);
    metrics->RecordGeneration("prefill", info.prefill_ms / 1e3);
    metrics->RecordGeneration("ttft", info.ttft_ms / 1e3);
    metrics->RecordGeneration("total", info.total_ms / 1e3);
    const auto answers = static_cast<uint32_t>(info.samples.size());
    if (info.generated_tokens > answers) {
      metrics->RecordGeneration("token", (info.total_ms - info.ttft_ms) / 1e3 * answers /
                                             (info.generated_tokens - answers));
    }
    status->RecordTimes(info);
  };
  return options;
}

InferenceOptions InferenceOf(const WorkerFlags& flags, std::vector<std::string> notes,
                             const StoreLink& link) {
  InferenceOptions options;
  options.notes = std::move(notes);
  options.store = flags.store;
  options.store_access = flags.store_access;
  options.reachability = link.reachability();
  options.model_dir = flags.engine.model_dir;
  options.version = kVersion;
  return options;
}

// Returns the text of the first tokens of a prompt: white space as single spaces, at most 256
// bytes.
std::string FirstWords(const Tokenizer& tokenizer, const std::vector<int32_t>& token_ids) {
  std::string text = tokenizer.Decode(token_ids, /*skip_special=*/true);
  absl::RemoveExtraAsciiWhitespace(&text);
  size_t bytes = std::min<size_t>(text.size(), 256);
  while (!IsUtf8Boundary(text, bytes)) --bytes;
  text.resize(bytes);
  return text;
}

// Returns the worker's name on its store's page: the host and the port, or, if the system chooses
// the port, the process id.
std::string ReportedName(const std::string& listen) {
  char host[256] = "";
  if (gethostname(host, sizeof(host) - 1) != 0) return listen;
  const std::string port = listen.substr(listen.rfind(':') + 1);
  return absl::StrCat(host,
                      port == "0" ? absl::StrCat(" pid ", getpid()) : absl::StrCat(":", port));
}

// Reports the worker to its store, and lets it send first words if the flag is set.
void StartReports(const WorkerFlags& flags, const Engine* engine, const Tokenizer* tokenizer,
                  StoreLink* link) {
  if (link->cache() == nullptr) return;
  if (flags.server.show_prompt_text && tokenizer != nullptr) {
    link->cache()->SendFirstWords([tokenizer](const std::vector<int32_t>& token_ids) {
      return FirstWords(*tokenizer, token_ids);
    });
  }
  link->StartReports(engine, ReportedName(flags.server.listen), ModelName(flags));
}

void SetCallbacks(EngineOptions* engine) {
  engine->on_warning = [rate = std::make_shared<LogRate>()](const std::string& text) {
    LogSometimes(rate.get(), LogLevel::kWarning, text, {});
  };
  engine->on_device_failure = &StopForDevice;
}

int Main(int argc, char** argv) {
  StoppedLine stopped;  // first, so that it is destroyed last
  WorkerFlags flags;
  int exit_code = 0;
  if (!ParseFlags(argc, argv, &flags, &exit_code)) return exit_code;
  GuardStart(kProgram, AskedMemory(flags));
  SetUpServer(flags.server);
  const absl::Time start = absl::Now();
  if (absl::Status status = CheckStart(flags); !status.ok()) {
    return FailToStart(kProgram, status);
  }
  const auto tokenizer = LoadTokenizer(flags.engine.model_dir, flags.chat_template);
  if (!tokenizer.ok()) return FailToStart(kProgram, tokenizer.status());
  SetCallbacks(&flags.engine);
  absl::StatusOr<std::unique_ptr<Engine>> engine = Engine::Create(flags.engine);
  if (!engine.ok()) return FailToStart(kProgram, engine.status());
  for (const std::string& note : NotesOf(flags, **engine, *tokenizer)) {
    Log(LogLevel::kInfo, note);
  }
  LogWarnings((*engine)->warnings());
  Metrics metrics("hearth_worker");
  const absl::StatusOr<ServerAccess> access =
      OpenAccess(flags.server.access, flags.server.listen, flags.http_listen);
  if (!access.ok()) return FailToStart(kProgram, access.status());
  Admission admission(RecordCalls(&metrics), access->identities.get());
  auto link = StoreLink::Open(
      {flags.store, flags.embedded, flags.shared_memory, flags.store_access, flags.engine.device},
      **engine, &admission);
  if (!link.ok()) return FailToStart(kProgram, link.status());
  (*engine)->SetCache((*link)->cache());
  (*link)->AddMetrics(&metrics);
  metrics.AddSource([&engine] { return EngineSamples((*engine)->Stats()); });
  WorkerStatus status(engine->get(), (*link)->counters(), kVersion, nullptr,
                      (*link)->reachability());
  status.figures()->AddPages(&metrics);
  if (!flags.server.metrics_listen.empty()) status.figures()->Start();
  auto generator = std::make_unique<Generator>(
      engine->get(), GenerationOf(flags, *tokenizer, **link, &metrics, &status));
  const auto grammar_stats = [&generator] { return generator->grammar_stats(); };
  metrics.AddSource([grammar_stats] { return GrammarSamples(grammar_stats()); });
  status.ShowGrammars(grammar_stats);
  InferenceService service(generator.get(), &admission,
                           InferenceOf(flags, NotesOf(flags, **engine, *tokenizer), **link));
  std::vector<NamedService> services = {{"hearth.v1.Inference", &service}};
  if (auto* store = (*link)->service()) services.push_back({"hearth.v1.CacheStore", store});
  LogLoaded(flags, **engine, *tokenizer, absl::Now() - start);
  auto door = OpenHttp(flags, generator.get(), &admission, *access);
  if (!door.ok()) return FailToStart(kProgram, door.status());
  StartReports(flags, engine->get(), tokenizer->tokenizer.get(), link->get());
  const absl::StatusOr<int> served = Serve(
      flags.server, services, &admission, &metrics, *access,
      [&](absl::Time deadline) {
        // Ask the remaining HTTP calls to end. gRPC's server ends its own calls.
        if (*door != nullptr) admission.CutOff();
        door->reset();
        (*engine)->Drain(deadline);
        (*link)->Flush(deadline);
      },
      &stopped,
      [&] {
        if (*door != nullptr) (*door)->Drain();
      });
  door->reset();
  metrics.Stop();  // must precede the end of the engine and the link, which its sources read
  status.figures()->Stop();
  (*link)->StopReports();
  generator.reset();  // must precede the end of the engine, which the generator's jobs use
  engine->reset();    // must precede the end of the link, which unfinished publishes still use
  return served.ok() ? *served : FailToStart(kProgram, served.status());
}

}  // namespace
}  // namespace hearth

int main(int argc, char** argv) { return hearth::Main(argc, argv); }
