// Recognizes chat templates that render chats as chat_template.h does, without running the
// templates.
//
// A template is reduced to a form without everything that does not change its output: comments,
// layout of tags, style of quotes, texts of error messages. The SHA-256 of the form is looked up in
// a list. A template that is not in the list counts as unknown, even if it renders the same chats.
// Thread safety: pure functions.
#ifndef HEARTH_WORKER_TEXT_TEMPLATE_FORM_H_
#define HEARTH_WORKER_TEXT_TEMPLATE_FORM_H_

#include <string>
#include <string_view>

namespace hearth {

// Returns the form of a Jinja template, as transformers configures Jinja (trim_blocks and
// lstrip_blocks). Templates of equal form render every chat equally. Returns a template unchanged
// if it cannot be parsed or has raw blocks.
std::string TemplateForm(std::string_view text);

// Returns whether the list has the template's form: RenderChat then renders text-only chats as the
// template does.
bool RendersAsGemma(std::string_view text);

}  // namespace hearth

#endif  // HEARTH_WORKER_TEXT_TEMPLATE_FORM_H_
