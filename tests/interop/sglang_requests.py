"""SGLang's own reading of requests: its HTTP application and its TokenizerManager, in this process, on the CPU, up to what the scheduler gets.

What stands in: the scheduler (a request is kept where it would be sent, and the route is told "recorded"), sockets, and the package of
kernels, which is imported and never used.
"""

import sys
from pathlib import Path

import stubs
from request_reader import Reader, Refused, post, reason_of

CONTEXT_LEN_MAX = 1 << 20


class SglangReader(Reader):
    def __init__(self):
        super().__init__()
        stubs.install(only=("sgl_kernel",))
        import sglang.srt.entrypoints.http_server as http_server
        from sglang.srt.managers.tokenizer_manager import TokenizerManager

        self.http_server = http_server
        self.sent = sent = []

        class Recorder(TokenizerManager):
            def init_ipc_channels(self, port_args):
                self.tokenizer_ipc_name = None

            def auto_create_handle_loop(self):
                pass

            async def _send_one_request(self, tokenized):
                sent.append(tokenized)
                raise ValueError("recorded")

            async def _handle_batch_request(self, batch, request=None, states=None):
                for i in range(batch.batch_size):
                    sent.append(await self._tokenize_one_request(batch[i]))
                raise ValueError("recorded")
                yield

        self.recorder = Recorder

    async def open(self, model, folder, flags):
        from sglang.srt.entrypoints.openai.serving_responses import OpenAIServingResponses
        from sglang.srt.server_args import prepare_server_args

        options = [part for name, value in flags.items() for part in (f"--{name.replace('_', '-')}", str(value))]
        args = prepare_server_args(["--model-path", folder, "--served-model-name", model, "--device", "cpu", *options])
        server = self.http_server
        server.publish(args, role="tokenizer")
        manager = self.recorder(args, None)
        # What Engine and http_server.lifespan do after it.
        manager.max_req_input_len = CONTEXT_LEN_MAX
        manager.server_status = server.ServerStatus.Up
        templates = server.TemplateManager()
        templates.initialize_templates(tokenizer_manager=manager, model_path=folder, chat_template=None, completion_template=None)
        chat = manager.serving_chat_class(manager, templates)
        return args, manager, templates, {
            "openai_serving_chat": chat,
            "openai_serving_completion": server.OpenAIServingCompletion(manager, templates),
            "openai_serving_responses": OpenAIServingResponses(manager, templates, enable_prompt_tokens_details=True),
            "anthropic_serving": server.AnthropicServing(chat)}

    async def read(self, opened, path, text):
        args, manager, templates, handlers = opened
        server = self.http_server
        server.publish(args, role="tokenizer")
        server.set_global_state(server._GlobalState(tokenizer_manager=manager, template_manager=templates, scheduler_info={}))
        for name, handler in handlers.items():
            setattr(server.app.state, name, handler)
        self.sent.clear()
        status, answer = await post(server.app, path, text)
        if not self.sent:
            raise Refused(status, reason_of(answer))
        # Req._compute_max_prefix_len of managers/schedule_batch.py.
        reads = all(not one.return_logprob or one.logprob_start_len != 0 for one in self.sent)
        return {"prompts": [list(one.input_ids) for one in self.sent], "reads_cache": reads}

    def tokenizer(self, opened):
        return opened[1].tokenizer


if __name__ == "__main__":
    if len(sys.argv) > 1:
        sys.path.insert(0, sys.argv[1])
        # Sources of kernels, which are looked for and never compiled; unpacked are those of Python alone.
        for name in ("include", "csrc"):
            (Path(sys.argv[1]) / "sglang/kernels/jit" / name).mkdir(exist_ok=True)
    SglangReader().serve()
