// Writes valid inputs from which the fuzz targets start.
//
//     hearth_fuzz_seeds FOLDER     creates FOLDER/snapshot, FOLDER/manifest, FOLDER/request,
//                                  FOLDER/state, FOLDER/redis, FOLDER/http, FOLDER/bodies,
//                                  FOLDER/calls and FOLDER/grammar
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

#include "cache_store/disk/stored_records.h"
#include "proto/cache_store.pb.h"
#include "services/rpc/proto_conversion.h"
#include "tests/proto/tiny_snapshot.h"
#include "tests/proto/tiny_state.h"

namespace hearth {
namespace {

struct SeedFolder {
  std::filesystem::path path;
  int number = 0;
  void Add(const std::string& bytes) {
    std::filesystem::create_directories(path);
    std::ofstream(path / ("seed-" + std::to_string(++number)), std::ios::binary) << bytes;
  }
  void Add(uint8_t kind, const std::string& bytes) { Add(static_cast<char>(kind) + bytes); }
};

ObjectRecord TinyObject() {
  const Manifest manifest = TinyManifest();
  ObjectRecord object;
  object.number = 7;
  object.id = manifest.objects[0].id;
  object.slice_bytes = TinyFingerprint().Layout()->SliceBytes(object.id.tokens);
  object.layers = TinyFingerprint().Layout()->LayersOf(object.id.group);
  object.slice_digests = manifest.objects[0].slice_digests;
  return object;
}

ManifestRecord TinyRecord() {
  ManifestRecord record;
  record.number = 9;
  record.tenant = "default";
  record.manifest = TinyManifest();
  for (size_t i = 0; i < record.manifest.objects.size(); ++i) record.objects.push_back(i + 1);
  return record;
}

void FillPrefix(bool with_fields, v1::Prefix* prefix) {
  if (with_fields) {
    ToProto(TinyFingerprint(), prefix->mutable_fingerprint());
  } else {
    DigestToProto(TinyFingerprint().digest(), prefix->mutable_fingerprint());
  }
  for (const uint32_t id : TinyManifest().token_ids) prefix->add_token_ids(id);
  prefix->add_cuts(5);
}

std::string Framed(const v1::PublishRequest& request) {
  const std::string bytes = request.SerializeAsString();
  return std::string{static_cast<char>(bytes.size() & 255), static_cast<char>(bytes.size() >> 8)} +
         bytes;
}

std::string WholePublish() {
  const Manifest manifest = TinyManifest();
  const KvLayout layout = *TinyFingerprint().Layout();
  v1::PublishRequest begin;
  FillPrefix(true, begin.mutable_begin()->mutable_prefix());
  begin.mutable_begin()->mutable_prefix()->add_cuts(20);
  begin.mutable_begin()->add_boundaries(20);
  for (const ManifestObject& object : manifest.objects) {
    v1::ObjectRef* ref = begin.mutable_begin()->add_objects();
    ToProto(object.id, ref);
    for (const uint64_t digest : object.slice_digests) ref->add_slice_digests(digest);
  }
  std::string stream = Framed(begin);
  size_t n = 0;
  for (uint32_t i = 0; i < manifest.objects.size(); ++i) {
    const ObjectId& id = manifest.objects[i].id;
    for (const uint32_t layer : layout.LayersOf(id.group)) {
      v1::PublishRequest slice;
      slice.mutable_slice()->set_object(i);
      slice.mutable_slice()->set_layer(layer);
      slice.mutable_slice()->set_data(TinySlice(n++, layout.SliceBytes(id.tokens)));
      stream += Framed(slice);
    }
  }
  v1::PublishRequest commit;
  commit.mutable_commit();
  return stream + Framed(commit);
}

// The first byte of a reply selects how the reply is divided into pieces.
void WriteRedisSeeds(const std::filesystem::path& folder) {
  SeedFolder redis{folder};
  const std::string node = "*3\r\n$9\r\n127.0.0.1\r\n:7000\r\n$2\r\nid\r\n";
  const std::string unnamed = "*4\r\n$-1\r\n:7001\r\n$2\r\nid\r\n*0\r\n";
  redis.Add(0, "\x05*2\r\n*4\r\n:0\r\n:8191\r\n" + node + unnamed + "*3\r\n:8192\r\n:16383\r\n" +
                   unnamed);
  redis.Add(0, "\xff+OK\r\n-MOVED 7 10.0.0.2:7001\r\n-ASK 7 ::1:7002\r\n");
  redis.Add(1, "\x01:1\r\n$-1\r\n$5\r\nvalue\r\n-OOM no\r\n");
  redis.Add(1, "\xf0$16384\r\n" + std::string(16384, 'x') + "\r\n:1\r\n");
}

std::string Post(const std::string& path, const std::string& more, const std::string& body) {
  return "POST " + path + " HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n" +
         more + "\r\n" + body;
}

// A request of the Messages API. The target reads each JSON body with the parsers of all APIs.
constexpr char kMessagesSeed[] =
    R"({"system":[{"type":"text","text":"s","cache_control":{"type":"ephemeral","ttl":"1h"}}],)"
    R"("messages":[{"role":"user","content":"q"},{"role":"assistant","content":[{"type":)"
    R"("thinking","thinking":"t"},{"type":"text","text":"a"},{"type":"tool_use","id":"c",)"
    R"("name":"f","input":{"x":[1,null]}}]},{"role":"user","content":[)"
    R"({"type":"tool_result","tool_use_id":"c",)"
    R"("is_error":true,"content":[{"type":"text","text":"r"},{"type":"tool_reference",)"
    R"("tool_name":"g"}]},{"type":"text","text":"b"}]}],"tools":[{"name":"f","input_schema":)"
    R"({"type":"object"},"strict":true},{"name":"g","defer_loading":true}],"tool_choice":{"type":)"
    R"("tool","name":"f","disable_parallel_tool_use":true},"output_config":{"format":{"type":)"
    R"("json_schema","schema":{"enum":[1]}}},"max_tokens":9,"stop_sequences":["x"],"top_k":4})";

// The first byte of a body is its API: 0 for completions, 1 for chats, 2 for responses.
void WriteHttpSeeds(const std::filesystem::path& folder) {
  SeedFolder http{folder / "http"}, bodies{folder / "bodies"};
  const std::string chat =
      R"({"model":"m","messages":[{"role":"system","content":"a"},{"role":"user","content":[)"
      R"({"type":"text","text":"b","prompt_cache_breakpoint":{"ttl":"5m"}}]}],"stream":true,)"
      R"("stream_options":{"include_usage":true},"logprobs":true,"top_logprobs":2,"tools":[],)"
      R"("prompt_cache_options":{"mode":"explicit","prewarm":false,"ttl":60,"keep":"1h",)"
      R"("priority":-1},"response_format":{"type":"text"},"prompt_cache_key":"k"})";
  const std::string completion =
      R"({"prompt":["a","\u00e9\ud83d\ude00"],"max_tokens":4,"temperature":0.5,"top_p":1e-1,)"
      R"("top_k":40,"min_p":0,"seed":7,"stop":["x","y"],"logit_bias":{"5":-1},"n":2,"echo":true,)"
      R"("logprobs":1,"best_of":2,"stop_token_ids":[1],"bad_token_ids":[2],"ignore_eos":true,)"
      R"("presence_penalty":1,"frequency_penalty":-2,"repetition_penalty":1.1,"min_tokens":1,)"
      R"("max_completion_tokens":5,"suffix":null,"user":{"a":[[{}]]}})";
  const std::string length = "Content-Length: " + std::to_string(chat.size()) + "\r\n";
  const std::string tools =
      R"({"messages":[{"role":"user","content":"a"},{"role":"assistant","content":null,)"
      R"("tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{}"}}]},)"
      R"({"role":"tool","tool_call_id":"c","content":"b"}],"tools":[{"type":"function","function":)"
      R"({"name":"f","description":"d","strict":true,"parameters":{"type":"object","$defs":{"p":)"
      R"({"type":"string"}},"properties":{"x":{"$ref":"#/$defs/p"}},"required":["x"]}}}],)"
      R"("tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":"auto","tools":[)"
      R"({"type":"function","function":{"name":"f"}}]}},"parallel_tool_calls":false,)"
      R"("response_format":{"type":"json_schema","json_schema":{"name":"s","schema":{"anyOf":[)"
      R"({"type":"object","properties":{"a":{"items":{"enum":[1,null]}}}},true]}}}})";
  const std::string response =
      R"({"instructions":"a","input":"b","max_output_tokens":4,"stream":true,"store":false,)"
      R"("include":["reasoning.encrypted_content"],"metadata":{"a":"b"},"temperature":0.5,"text":)"
      R"({"format":{"type":"json_schema","name":"s","schema":{"enum":[1]}},"verbosity":"low"}})";
  const std::string response_with_calls =
      R"({"input":[{"role":"user","content":[{"type":"input_text","text":"b",)"
      R"("prompt_cache_breakpoint":{"ttl":"5m"}}]},{"type":"reasoning","id":"r"},{"type":)"
      R"("message","role":"assistant","content":[{"type":"output_text","text":"c"}]},{"type":)"
      R"("function_call","call_id":"c","name":"f","arguments":"{}"},{"type":)"
      R"("function_call_output","call_id":"c","output":"d"}],"tools":[{"type":"function","name":)"
      R"("f","strict":true,"parameters":{"type":"object"}}],"tool_choice":{"type":)"
      R"("allowed_tools","mode":"auto","tools":[{"type":"function","name":"f"}]}})";
  bodies.Add(1, kMessagesSeed);
  bodies.Add(1, chat);
  bodies.Add(1, tools);
  bodies.Add(0, completion);
  bodies.Add(2, response);
  bodies.Add(2, response_with_calls);
  http.Add(Post("/v1/responses", "Content-Length: " + std::to_string(response.size()) + "\r\n",
                response));
  bodies.Add(0, R"({"prompt":[[1,2],[3]]})");
  bodies.Add(0, R"({"prompt":[1,2,4294967295],"add_special_tokens":false,"tokens":[1]})");
  http.Add(Post("/v1/chat/completions", length, chat));
  http.Add(Post("/v1/completions", "Expect: 100-continue\r\nTransfer-Encoding: chunked\r\n",
                "e;a=b\r\n{\"prompt\":\"a\" \r\n1\r\n}\r\n0\r\nx-trailer: y\r\n\r\n"));
  http.Add("GET /health HTTP/1.1\r\nHost: localhost:1\r\nX-Api-Key: a\r\n\r\n" +
           Post("/v1/completions", "Authorization: Bearer a\r\nContent-Length: 2\r\n", "{}") +
           "HEAD /?q=1 HTTP/1.0\r\nOrigin: null\r\nConnection: keep-alive\r\n\r\n");
  http.Add("OPTIONS * HTTP/1.1\r\nHost: [::1]:80\r\nConnection: close\r\n\r\n");
}

// An even first byte allows several calls (calls_fuzz.cc).
void WriteCallSeeds(const std::filesystem::path& folder) {
  SeedFolder calls{folder};
  const std::string call = R"({"name": "get", "parameters": {"a": [1, {"b": "\\"}]}})";
  calls.Add(0, "Look:\n```json\n" + call + "\n```\n");
  calls.Add(2, "[" + call + R"(, {"name": "f-1", "parameters": {}}])");
  calls.Add(1, " \n" + call + "\n" + call + " Done.");
  calls.Add(0, R"({"b":"caf\u00e9\/","a":[1.50,-0,1e9,true,null]})");
}

// A first byte of 1 or 3 makes the schema lenient; 2 or 3 adds triggers (grammar_fuzz.cc).
void WriteGrammarSeeds(const std::filesystem::path& folder) {
  SeedFolder grammar{folder};
  const std::string choices("\0\x13\1\x27\x34\2\x55\x83\0\xf7\x44", 11);
  for (const char* schema :
       {R"({"type":"object","properties":{"name":{"const":"f"},"parameters":{"type":"object",)"
        R"("properties":{"a":{"type":"string","maxLength":20}},"required":["a"]}},)"
        R"("required":["name","parameters"]})",
        R"({"anyOf":[{"enum":[1,null,"\u00e9"]},{"type":"integer","minimum":-3,"maximum":40}]})",
        R"({"$defs":{"n":{"properties":{"c":{"type":"array","items":{"$ref":"#/$defs/n"},)"
        R"("minItems":1,"maxItems":2}}}},"$ref":"#/$defs/n"})",
        R"({"type":"string","pattern":"^[a-z]{2,3}-[0-9]+$"})",
        R"({"allOf":[{"type":"string","format":"date-time"},{"minLength":2}]})",
        R"({"type":"number","exclusiveMinimum":-5,"multipleOf":0.25})",
        R"({"patternProperties":{"^x":{"type":["boolean","null"]}},"minProperties":1,)"
        R"("additionalProperties":{"oneOf":[{"type":"string"},{"not":{}}]}})",
        R"({"prefixItems":[true,{"uniqueItems":true}],"items":false})"}) {
    for (const uint8_t kind : {0, 1, 2}) grammar.Add(kind, schema + std::string(1, '\0') + choices);
  }
}

void WriteSeeds(const std::filesystem::path& folder) {
  SeedFolder snapshot{folder / "snapshot"};
  snapshot.Add(0, TinyFile());
  snapshot.Add(1, *BuildSnapshotHeader(TinyFingerprint(), TinyManifest()));
  snapshot.Add(0, PageFile());
  SeedFolder state{folder / "state"};
  state.Add(0, TinyStateFile());
  state.Add(1, TinyStateFile());
  SeedFolder manifest{folder / "manifest"};
  for (const uint8_t sealed : {0, 4}) {
    manifest.Add(sealed | 0, SerializeManifest(TinyManifest()));
    manifest.Add(sealed | 1, SerializeManifestRecord(TinyRecord()));
    manifest.Add(sealed | 2, SerializeObject(TinyObject()));
    manifest.Add(sealed | 3, TinyFingerprint().Serialize());
    manifest.Add(sealed | 3, PageFingerprint().Serialize());
  }
  SeedFolder request{folder / "request"};
  for (const bool with_fields : {false, true}) {
    v1::FetchRequest fetch;
    FillPrefix(with_fields, fetch.mutable_prefix());
    fetch.set_max_tokens(20);
    request.Add(0, fetch.SerializeAsString());
  }
  request.Add(1, WholePublish());
  v1::DropRequest drop;
  drop.set_restore_point_id(std::string(32, 'x'));
  drop.set_tenant("default");
  request.Add(2, drop.SerializeAsString());
  WriteRedisSeeds(folder / "redis");
  WriteHttpSeeds(folder);
  WriteCallSeeds(folder / "calls");
  WriteGrammarSeeds(folder / "grammar");
}

}  // namespace
}  // namespace hearth

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: hearth_fuzz_seeds FOLDER\n");
    return 2;
  }
  hearth::WriteSeeds(argv[1]);
  return 0;
}
