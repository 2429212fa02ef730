// ModelTemplate: a model's own chat template, which Jinja renders in a child process.
//
// The messages are passed to the template as transformers documents them. To place a breakpoint,
// Jinja also renders the beginning of the chat up to the breakpoint: the breakpoint is where this
// rendering and the chat's rendering begin to differ. Thread safety: const after Make; any thread.
// Rendering takes milliseconds, and may take seconds: do not call it on the engine's thread.
#ifndef HEARTH_WORKER_TEXT_JINJA_MODEL_TEMPLATE_H_
#define HEARTH_WORKER_TEXT_JINJA_MODEL_TEMPLATE_H_

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "worker/text/chat_template.h"
#include "worker/text/jinja/template_process.h"
#include "worker/text/jinja/template_tools.h"
#include "worker/text/prompt.h"
#include "worker/text/tokenizer.h"

namespace hearth {

class ModelTemplate {
 public:
  // A template of the file `from`. `variables`: special tokens by name, such as bos_token. An error
  // says why chats cannot be rendered: kInvalidArgument: the template is wrong, with Jinja's words;
  // kFailedPrecondition: Python or Jinja is missing. `tokenizer` is used only during the call.
  static absl::StatusOr<std::unique_ptr<ModelTemplate>> Make(
      const std::string& from, const std::string& text,
      const std::map<std::string, std::string>& variables, const Tokenizer& tokenizer,
      const TemplateLimits& limits = {});

  // Renders a chat. System messages at the beginning are joined, with blank lines between. Each
  // range of RenderedChat::messages is the first byte of a special token's name inside a message;
  // only strict chats have ranges. Token ids of messages are not used. Errors begin with "chat" and
  // name the template. kInvalidArgument: the template refuses the chat, with its words; kCancelled:
  // `stopped` returned true; kUnavailable: the child process failed.
  absl::StatusOr<RenderedChat> Render(const ChatInput& given, ChatEnding ending,
                                      const std::function<bool()>& stopped) const;
  // How the template writes tools and calls.
  const TemplateTools& tools() const { return tools_; }
  TemplateProcess* process() const { return process_.get(); }

 private:
  ModelTemplate() = default;
  // Returns `why` with the name of the template.
  absl::Status TemplateError(const absl::Status& why) const;

  TemplateTools tools_;
  std::unique_ptr<TemplateProcess> process_;
};

}  // namespace hearth

#endif  // HEARTH_WORKER_TEXT_JINJA_MODEL_TEMPLATE_H_
