"""vLLM's own reading of requests: the application of `vllm launch render` with its HTTP routes, in this process, on the CPU.

Those routes run the code of the serving routes up to the ids (entrypoints/scale_out/render). What stands in: the platform, which is the CPU's
although the package is CUDA's, since nothing is computed. Options are `vllm serve`'s; `--enable-auto-tool-choice` is always given, since
every server for agents has it.
"""

import json
import sys
from pathlib import Path

from request_reader import Reader, Refused, post, reason_of

ROUTES = {path: path + "/render" for path in ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages")}


class VllmReader(Reader):
    def __init__(self):
        super().__init__()
        import vllm.platforms
        from vllm.platforms.cpu import CpuPlatform

        vllm.platforms._current_platform = CpuPlatform()
        import vllm.entrypoints.scale_out.render.api_router as api_router

        # The answer of a render route also holds tools and variables of the client's, of which infinity or half a pair of surrogates cannot
        # be written: the serving routes write none of them.
        whole = api_router.create_json_response

        def of_ids_alone(result, **more):
            requests = result if isinstance(result, list) else [result]
            if not all(isinstance(request, api_router.GenerateRequest) for request in requests):
                return whole(result, **more)
            return whole({"requests": [{"token_ids": request.token_ids, "reads_cache": not request.sampling_params.skip_reading_prefix_cache}
                                       for request in requests]}, **more)

        api_router.create_json_response = of_ids_alone

    async def open(self, model, folder, flags):
        from vllm import AsyncEngineArgs
        from vllm.config import VllmConfig
        from vllm.entrypoints.common.cli_args import make_arg_parser
        from vllm.entrypoints.launchers.app import build_app
        from vllm.entrypoints.launchers.render.app_state import init_render_app_state
        from vllm.utils.argparse_utils import FlexibleArgumentParser

        # A parser is of answers; without one a request with `tool_choice` "required" is refused. Harmony takes its own alone.
        harmony = json.loads((Path(folder) / "config.json").read_text())["model_type"] == "gpt_oss"
        flags = {"tool_call_parser": "openai" if harmony else "hermes", **flags}
        options = [f"--{name.replace('_', '-')}={value}" for name, value in flags.items()]
        args = make_arg_parser(FlexibleArgumentParser()).parse_args(
            ["--model", folder, "--served-model-name", model, "--enable-auto-tool-choice", *options])
        engine_args = AsyncEngineArgs.from_cli_args(args)
        # As run_launch_fastapi of entrypoints/launchers/render/entry.py.
        model_config = engine_args.create_model_config()
        model_config.quantization = None
        app = build_app(args, ("render",))
        await init_render_app_state(
            VllmConfig(model_config=model_config, structured_outputs_config=engine_args.create_structured_outputs_config()),
            app.state, args)
        return app

    async def read(self, app, path, text):
        status, answer = await post(app, ROUTES[path], text)
        if status != 200:
            raise Refused(status, reason_of(answer))
        requests = answer["requests"]
        from vllm.exceptions import VLLMValidationError

        # As the engine does with what it is given, v1/engine/input_processor.py.
        for request in requests:
            try:
                app.state.online_renderer.renderer.validate_token_ids(request["token_ids"])
            except VLLMValidationError as error:
                raise Refused(400, str(error)) from error
        return {"prompts": [request["token_ids"] for request in requests], "reads_cache": all(request["reads_cache"] for request in requests)}

    def tokenizer(self, app):
        return app.state.online_renderer.renderer.get_tokenizer()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        sys.path.insert(0, sys.argv[1])
    VllmReader().serve()
