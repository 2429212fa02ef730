// inspect and verify: files and folders, without a server.
#include <sys/stat.h>

#include <memory>

#include "absl/strings/str_cat.h"
#include "proto/snapshot_format.h"
#include "services/hearthctl/command_set.h"
#include "services/hearthctl/data_dir_check.h"
#include "services/hearthctl/json_text.h"
#include "services/hearthctl/mapped_file.h"
#include "services/hearthctl/model_info.h"

namespace hearth {
namespace {

constexpr char kInspectExamples[] = R"(  hearthctl inspect saved.snapshot
  hearthctl inspect saved.snapshot --json
Reads the header only; verify reads every byte.
)";
constexpr char kVerifyExamples[] =
    R"(  hearthctl verify saved.snapshot        (a file: every slice against its digest)
  hearthctl verify /var/lib/hearth       (a store's data folder)
A folder may be in use: the store is not disturbed, but what it changes meanwhile can look damaged,
and the answer then says which process has it open.
Exit code 1 when anything is damaged.
)";

struct FileFlags {
  std::string path;
  bool json = false;
};

size_t SliceCount(const SnapshotHeader& header) { return header.slice_offsets.size(); }

Json InspectJson(const SnapshotHeader& header) {
  const Manifest& manifest = header.manifest;
  Json json;
  json["token_count"] = manifest.token_count;
  json["next_position"] = manifest.next_position;
  json["attention_mask"] = manifest.attention_mask;
  json["cuts"] = manifest.cuts;
  json["objects"] = manifest.objects.size();
  json["slices"] = SliceCount(header);
  json["payload_offset"] = header.payload_offset;
  json["file_bytes"] = header.file_bytes;
  json["fingerprint"] = DigestHex(header.fingerprint.digest());
  json["fields"] = FingerprintFieldsJson(header.fingerprint);
  json["token_ids"] = manifest.token_ids;
  return json;
}

void PrintInspect(const SnapshotHeader& header, Console& console) {
  const Manifest& manifest = header.manifest;
  console.out << "restore point at " << manifest.token_count << " tokens, "
              << SizeText(header.file_bytes) << ": " << manifest.objects.size() << " objects, "
              << SliceCount(header) << " slices, payload at " << header.payload_offset << "\n";
  console.out << "next position " << manifest.next_position << ", mask " << manifest.attention_mask
              << ", cuts at";
  for (uint32_t cut : manifest.cuts) console.out << " " << cut;
  console.out << (manifest.cuts.empty() ? " none" : "") << "\nfingerprint "
              << DigestHex(header.fingerprint.digest()) << "\n";
  for (const FingerprintField& field : header.fingerprint.fields()) {
    console.out << "  " << field.name << " " << field.ValueText() << "\n";
  }
  console.out << "first tokens";
  for (size_t i = 0; i < manifest.token_ids.size() && i < 16; ++i) {
    console.out << " " << manifest.token_ids[i];
  }
  console.out << std::endl;
}

int RunInspect(const FileFlags& flags, Console& console) {
  auto file = MappedFile::Open(flags.path);
  if (!file.ok()) return Fail(console, file.status());
  auto header = ParseSnapshotHeader((*file)->bytes());
  if (!header.ok()) {
    return Fail(console, absl::Status(header.status().code(),
                                      absl::StrCat(flags.path, ": ", header.status().message())));
  }
  if (flags.json) {
    console.out << JsonLine(InspectJson(*header)) << std::endl;
  } else {
    PrintInspect(*header, console);
  }
  return kExitOk;
}

int VerifyFile(const FileFlags& flags, Console& console) {
  auto file = MappedFile::Open(flags.path);
  if (!file.ok()) return Fail(console, file.status());
  const absl::Status status = VerifySnapshotFile((*file)->bytes());
  if (flags.json) {
    Json json;
    json["path"] = flags.path;
    json["ok"] = status.ok();
    json["bytes"] = (*file)->bytes().size();
    if (!status.ok()) json["error"] = std::string(status.message());
    console.out << JsonLine(json) << std::endl;
  }
  if (!status.ok()) {
    return Fail(console,
                absl::Status(status.code(), absl::StrCat(flags.path, ": ", status.message())));
  }
  if (!flags.json) {
    console.out << flags.path << ": whole, " << SizeText((*file)->bytes().size()) << std::endl;
  }
  return kExitOk;
}

int RunVerify(const FileFlags& flags, Console& console) {
  struct stat info;
  if (::stat(flags.path.c_str(), &info) != 0) {
    return Fail(console, absl::NotFoundError(absl::StrCat(flags.path, " does not exist")));
  }
  return S_ISDIR(info.st_mode) ? CheckDataDir(flags.path, flags.json, console)
                               : VerifyFile(flags, console);
}

}  // namespace

void AddInspectCommand(CommandSet* commands) {
  auto flags = std::make_shared<FileFlags>();
  CommandFlags* command =
      commands->Add("inspect", "Show a snapshot file's header", kInspectExamples);
  command->AddSnapshot("file", &flags->path).Required();
  command->AddJson(&flags->json);
  commands->Run(command, [flags](Console& console) { return RunInspect(*flags, console); });
}

void AddVerifyCommand(CommandSet* commands) {
  auto flags = std::make_shared<FileFlags>();
  CommandFlags* command = commands->Add(
      "verify", "Check every byte of a snapshot file or of a store's data folder", kVerifyExamples);
  command->Add("path", &flags->path, "a snapshot file or a data folder").Required();
  command->AddJson(&flags->json);
  commands->Run(command, [flags](Console& console) { return RunVerify(*flags, console); });
}

}  // namespace hearth
