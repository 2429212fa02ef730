#include "services/serving/flags.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "cache_store/base/regular_file.h"
#include "services/cli/command_line.h"
#include "services/cli/near_words.h"
#include "services/cli/program_text.h"
#include "services/cli/version.h"

namespace hearth {
namespace {

// The largest size is 2^53 bytes: up to it, every whole number is exact in a double.
constexpr double kMaxByteSize = 9007199254740992.0;

// Returns the number of bytes of a unit in lower case: "" and "b", "k" and "kib", "kb", and so on
// up to "t". Returns 0 if the unit is unknown.
double BytesOf(absl::string_view unit) {
  if (unit.empty() || unit == "b") return 1;
  const size_t power = absl::string_view("kmgt").find(unit[0]);
  const absl::string_view rest = unit.substr(1);
  if (power == absl::string_view::npos) return 0;
  if (rest == "b") return std::pow(1000.0, power + 1);
  return rest.empty() || rest == "ib" ? std::pow(1024.0, power + 1) : 0;
}

// Adds a flag whose text `parse` converts. An error of `parse` becomes CLI11's error.
template <typename Value>
CLI::Option* AddParsed(CLI::App* app, const std::string& name, Value* value,
                       absl::StatusOr<Value> (*parse)(absl::string_view), const std::string& help) {
  return app->add_option_function<std::string>(
      "--" + name,
      [name, value, parse](const std::string& text) {
        absl::StatusOr<Value> parsed = parse(text);
        if (!parsed.ok()) {
          throw CLI::ValidationError("--" + name, std::string(parsed.status().message()));
        }
        *value = *parsed;
      },
      help);
}

}  // namespace

absl::StatusOr<uint64_t> ParseByteSize(absl::string_view text) {
  const absl::string_view stripped = absl::StripAsciiWhitespace(text);
  size_t end = 0;
  while (end < stripped.size() &&
         (std::isdigit(static_cast<unsigned char>(stripped[end])) || stripped[end] == '.')) {
    ++end;
  }
  double number = 0;
  const std::string unit = absl::AsciiStrToLower(absl::StripAsciiWhitespace(stripped.substr(end)));
  const double unit_bytes = BytesOf(unit);
  if (end == 0 || !absl::SimpleAtod(stripped.substr(0, end), &number) || unit_bytes == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("must be bytes, or a size such as 512MiB, 4GiB or 1TB; got \"", text, "\""));
  }
  const double bytes = number * unit_bytes;
  if (bytes > kMaxByteSize) {
    return absl::InvalidArgumentError(absl::StrCat("must be at most 8 PiB; got \"", text, "\""));
  }
  return static_cast<uint64_t>(std::llround(bytes));
}

std::string FormatByteSize(uint64_t bytes) {
  constexpr const char* kUnits[] = {"", "KiB", "MiB", "GiB", "TiB"};
  int unit = 0;
  while (bytes >= 1024 && bytes % 1024 == 0 && unit < 4) {
    bytes /= 1024;
    ++unit;
  }
  return absl::StrCat(bytes, kUnits[unit]);
}

FlagSet::FlagSet(const std::string& program, const std::string& environment,
                 const std::string& about, const std::string& examples,
                 const std::string& built_with)
    : environment_(environment), app_(std::make_unique<CLI::App>(about, program)) {
  app_->set_version_flag("--version",
                         absl::StrCat(kVersionText, built_with.empty() ? "" : "\n", built_with));
  app_->set_config("--config", "", "Read flags from this TOML or INI file")
      ->envname(environment + "CONFIG")
      ->check(
          [](const std::string& path) {
            return std::string(CheckIsRegular(path).message());  // reading a pipe would wait
          },
          "", "");
  // a misspelt flag in the file is an error
  app_->allow_config_extras(CLI::config_extras_mode::error);
  app_->footer(examples);
  AddPageFlags("8", app_.get(), &page_);
  app_->get_formatter()->column_width(44);
}

FlagSet::~FlagSet() = default;

CLI::Option* FlagSet::Described(CLI::Option* option, const std::string& name) {
  return option->envname(environment_ +
                         absl::AsciiStrToUpper(absl::StrReplaceAll(name, {{"-", "_"}})));
}

void FlagSet::AddText(const std::string& name, std::string* value, const std::string& help) {
  Described(app_->add_option("--" + name, *value, help), name)->capture_default_str();
}

void FlagSet::AddRequired(const std::string& name, std::string* value, const std::string& help) {
  Described(app_->add_option("--" + name, *value, help), name)->required();
}

void FlagSet::AddBytes(const std::string& name, uint64_t* value, const std::string& help) {
  Described(AddParsed(app_.get(), name, value, &ParseByteSize, help), name)
      ->type_name("SIZE")
      ->default_str(FormatByteSize(*value));
}

void FlagSet::AddDuration(const std::string& name, absl::Duration* value, const std::string& help) {
  Described(AddParsed(app_.get(), name, value, &ParseFlagDuration, help), name)
      ->type_name("DURATION")
      ->default_str(absl::FormatDuration(*value));
}

void FlagSet::AddUint(const std::string& name, uint32_t* value, const std::string& help) {
  Described(app_->add_option("--" + name, *value, help), name)->capture_default_str();
}

void FlagSet::AddNamed(const std::string& name, std::map<std::string, std::string>* value,
                       const std::string& help) {
  const auto add = [name, value](const std::vector<std::string>& texts) {
    for (const std::string& text : texts) {
      const size_t equals = text.find('=');
      if (equals == 0 || equals == text.npos || equals + 1 == text.size()) {
        throw CLI::ValidationError("--" + name,
                                   absl::StrCat("must be NAME=TEXT; got \"", text, "\""));
      }
      if (!value->emplace(text.substr(0, equals), text.substr(equals + 1)).second) {
        throw CLI::ValidationError("--" + name,
                                   absl::StrCat(text.substr(0, equals), " is given twice"));
      }
    }
    return true;
  };
  Described(app_->add_option_function<std::vector<std::string>>("--" + name, add, help), name)
      ->allow_extra_args(false)
      ->delimiter(',')
      ->type_name("NAME=TEXT");
}

void FlagSet::AddShare(const std::string& name, double* value, const std::string& help) {
  Described(app_->add_option("--" + name, *value, help), name)
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
}

void FlagSet::AddIndex(const std::string& name, size_t index, const std::vector<std::string>& names,
                       const std::string& help, std::function<void(size_t)> set) {
  auto* option = app_->add_option_function<std::string>(
      "--" + name,
      [name, names, set = std::move(set)](const std::string& text) {
        const auto at = std::find(names.begin(), names.end(), text);
        if (at == names.end()) {
          throw CLI::ValidationError("--" + name, NotOneOf(text, absl::StrJoin(names, ", ")));
        }
        set(at - names.begin());
      },
      help);
  Described(option, name)->type_name(absl::StrJoin(names, "|"))->default_str(names[index]);
}

void FlagSet::AddServerFlags(ServerFlags* flags) {
  mistyped_ = &flags->mistyped_variables;
  AddText("listen", &flags->listen, "Serve gRPC on HOST:PORT (port 0: any free port) or unix:PATH");
  AddText("address-file", &flags->address_file,
          "Write the gRPC address to this file, atomically, once the server is ready");
  AddText("metrics-listen", &flags->metrics_listen,
          "Serve Prometheus metrics over HTTP on HOST:PORT; empty: off");
  AddText("metrics-address-file", &flags->metrics_address_file,
          "Write the metrics address to this file");
  AddText("metrics-hosts", &flags->metrics_hosts,
          "Comma-separated names by which callers reach the metrics, in addition to localhost, IP "
          "addresses and the name in --metrics-listen; *: all");
  AddChoice("show-prompt-text", &flags->show_prompt_text, {"off", "on"},
            "If on at a worker and at its store, the store's status page shows the first words of "
            "prompts to administrators. They are kept in RAM only");
  AddChoice("log-level", &flags->log_level, {"debug", "info", "warning", "error"},
            "Lowest level of the log lines written to stderr");
  AddChoice("log-format", &flags->log_format, {"text", "json"},
            "One line per event. text: key=value; json: a JSON object");
  AddDuration("drain-timeout", &flags->drain_timeout,
              "Maximum time for running requests to finish after SIGTERM");
  AddUint("max-connections", &flags->max_connections,
          "Maximum number of open TCP connections; a connection over the limit replaces an idle "
          "one, or is closed");
  AddBytes("unfinished-bytes", &flags->unfinished_bytes,
           "Memory for partially received requests, all connections together (the HTTP port has "
           "the same amount again); connections over the limit are closed");
  AccessFlags* const access = &flags->access;
  AddText("tls-cert", &access->tls_cert,
          "Serve TLS with this certificate chain (PEM); empty: no TLS");
  AddText("tls-key", &access->tls_key, "Private key of --tls-cert (PEM)");
  AddText("tls-client-ca", &access->tls_client_ca,
          "Callers must show a certificate that this authority (PEM) signed, or a token. Without "
          "--identities-file the certificate's name is the caller's tenant");
  AddText("identities-file", &access->identities_file,
          "JSON file of the callers: name, role, tenant, and certificate or SHA-256 of a token; "
          "reloaded when it changes. Empty and no --tls-client-ca: one tenant, `default`");
  AddChoice("plaintext-tokens", &access->plaintext_tokens, {"off", "on"},
            "Accept tokens without TLS on an address that other hosts can reach");
}

// In CLI11 a file overrides the environment. So each variable is appended to the command line as
// the flag that it names, unless the command line has that flag.
std::vector<std::string> FlagSet::WithEnvironment(int argc, const char* const* argv) const {
  std::vector<std::string> args(argv + 1, argv + argc);
  const size_t given = args.size();
  for (const CLI::Option* option : app_->get_options()) {
    const char* value =
        option->get_envname().empty() ? nullptr : std::getenv(option->get_envname().c_str());
    if (value == nullptr || *value == '\0') continue;
    const std::string flag = "--" + option->get_lnames().front();
    const auto names_it = [&](const std::string& arg) {
      return arg == flag || absl::StartsWith(arg, flag + "=");
    };
    if (std::any_of(args.begin(), args.begin() + given, names_it)) continue;
    args.push_back(absl::StrCat(flag, "=", value));
  }
  return args;
}

// Reports an unknown flag first, because it may be the cause of other errors.
std::string FlagSet::UsageError(const std::string& parser_message) const {
  const auto is_no_flag = [this](const std::string& flag, const char* dashes) {
    std::vector<std::string> known;
    for (const CLI::Option* option : app_->get_options()) {
      known.push_back(dashes + option->get_lnames().front());
    }
    return absl::StrCat("unknown flag ", flag, DidYouMean(flag, known));
  };
  for (const std::string& word : app_->remaining()) {
    if (word.size() < 2 || word[0] != '-') continue;
    return is_no_flag(word.substr(0, word.find('=')), "--");
  }
  absl::string_view key = parser_message;
  if (!absl::ConsumePrefix(&key, CLI::ConfigError::Extras("").what())) return parser_message;
  const absl::string_view name = key.substr(key.rfind('.') + 1);
  const auto path = app_->get_config_ptr()->as<std::string>();
  std::ifstream file(path);
  int number = 0;
  for (std::string line; std::getline(file, line);) {
    ++number;
    const absl::string_view text(line);
    if (absl::StripAsciiWhitespace(text.substr(0, text.find('='))) == name) break;
  }
  return absl::StrCat(path, ":", number, ": ", is_no_flag(std::string(key), ""));
}

bool FlagSet::Parse(int argc, const char* const* argv, int* exit_code) {
  try {
    std::vector<std::string> args = WithEnvironment(argc, argv);
    std::reverse(args.begin(), args.end());  // CLI11 takes a vector in reverse order
    app_->parse(std::move(args));
    std::vector<std::string> known;
    for (const CLI::Option* option : app_->get_options()) known.push_back(option->get_envname());
    if (mistyped_ != nullptr) {
      *mistyped_ = MistypedVariables(environ, app_->get_name(), environment_, known);
    }
    return true;
  } catch (const CLI::ParseError& error) {
    // Help, version and pages exit with code 0. CLI11 itself prints the help and the version.
    if (error.get_exit_code() == 0) {
      std::fputs(page_.c_str(), stdout);
      *exit_code = page_.empty() ? app_->exit(error) : 0;
    } else {
      std::fprintf(stderr, "%s: %s (see --help)\n", app_->get_name().c_str(),
                   UsageError(error.what()).c_str());
      *exit_code = 2;
    }
    return false;
  }
}

}  // namespace hearth
