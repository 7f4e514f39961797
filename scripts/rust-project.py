#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes rust-project.json for rust-analyzer: the driver and its kernel, and the workspace.

	rust-project.py KERNEL METADATA MESSAGES PLACE=HOST... >rust-project.json

KERNEL is what the kernel's `make rust-analyzer` wrote, METADATA what `cargo metadata` printed, and
MESSAGES what `cargo build --message-format=json` did: they know the kernel's crates, the
workspace's, and what build scripts made. All three were made in the sandbox: what is at PLACE
there is at HOST here. An IDE that runs here needs neither cargo nor a kernel tree of its own.
"""

import json
import os
import sys

# Targets of a package that others can use.
LIBRARIES = {"lib", "rlib", "cdylib", "staticlib", "dylib", "proc-macro"}


def kernel_crates(project, module):
    """The kernel's crates; the driver's own also knows where its generated bindings are."""
    crates = project["crates"]
    driver = next(crate for crate in crates if crate["display_name"] == "skua")
    driver["env"]["SKUA_OBJ"] = module
    driver["source"] = {"include_dirs": ["/mnt/drivers", "/mnt/rust", module], "exclude_dirs": []}
    for crate in crates:
        crate["is_workspace_member"] = crate is driver
    return crates


def messages(path):
    """Of each package: what its build script made known, and its procedural macros."""
    scripts, macros = {}, {}
    with open(path, encoding="utf-8") as lines:
        for message in map(json.loads, lines):
            if message["reason"] == "build-script-executed":
                scripts[message["package_id"]] = message
            elif message["reason"] == "compiler-artifact":
                if "proc-macro" in message["target"]["kind"]:
                    macros[message["package_id"]] = message["filenames"][0]
    return scripts, macros


def cargo_crates(metadata, scripts, macros, first):
    """A crate for each target of the workspace, and for each library it stands on."""
    packages = {package["id"]: package for package in metadata["packages"]}
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    members = set(metadata["workspace_members"])
    targets = [
        (package, target, bool(LIBRARIES & set(target["kind"])))
        for package in packages.values()
        for target in package["targets"]
        if LIBRARIES & set(target["kind"]) or package["id"] in members
    ]
    libraries = {
        package["id"]: first + at
        for at, (package, _, library) in enumerate(targets)
        if library
    }

    def dependencies(package, target, library):
        for dep in nodes[package["id"]]["deps"]:
            kinds = {kind["kind"] for kind in dep["dep_kinds"]}
            wanted = {"build"} if target["kind"] == ["custom-build"] else {None}
            # Tests of members may go in circles, but libraries may not.
            circle = library and dep["pkg"] in members
            if package["id"] in members and wanted == {None} and not circle:
                wanted.add("dev")
            if kinds & wanted and dep["pkg"] in libraries:
                yield {"crate": libraries[dep["pkg"]], "name": dep["name"]}
        if not library and package["id"] in libraries and target["kind"] != ["custom-build"]:
            name = next(t["name"] for p, t, l in targets if l and p is package)
            yield {"crate": libraries[package["id"]], "name": name.replace("-", "_")}

    crates = []
    for package, target, library in targets:
        script = scripts.get(package["id"], {"cfgs": [], "env": [], "out_dir": None})
        root = os.path.dirname(package["manifest_path"])
        env = {
            "CARGO_MANIFEST_DIR": root,
            "CARGO_PKG_NAME": package["name"],
            "CARGO_PKG_VERSION": package["version"],
            "CARGO_CRATE_NAME": target["name"].replace("-", "_"),
            **dict(script["env"]),
        }
        dirs = [root]
        if script["out_dir"]:
            env["OUT_DIR"] = script["out_dir"]
            dirs.append(script["out_dir"])
        crate = {
            "display_name": target["name"].replace("-", "_"),
            "root_module": target["src_path"],
            "edition": target["edition"],
            "deps": list(dependencies(package, target, library)),
            "cfg": [f'feature="{name}"' for name in nodes[package["id"]]["features"]]
            + script["cfgs"]
            + ["unix", 'target_os="linux"', 'target_arch="x86_64"', 'target_pointer_width="64"',
               'target_endian="little"', 'target_env="gnu"', 'target_family="unix"',
               'panic="unwind"', "debug_assertions"]
            + (["test"] if package["id"] in members else []),
            "env": env,
            "is_workspace_member": package["id"] in members,
            "source": {"include_dirs": dirs, "exclude_dirs": []},
        }
        if "proc-macro" in target["kind"]:
            crate["is_proc_macro"] = True
            if package["id"] in macros:
                crate["proc_macro_dylib_path"] = macros[package["id"]]
        crates.append(crate)
    return crates


def main(kernel, metadata, artifacts, *places):
    places = sorted((place.split("=", 1) for place in places), key=lambda pair: -len(pair[0]))

    def here(value):
        """The same with the host's paths."""
        if isinstance(value, dict):
            return {key: here(item) for key, item in value.items()}
        if isinstance(value, list):
            return [here(item) for item in value]
        if isinstance(value, str):
            for place, host in places:
                if value == place or value.startswith(place + "/"):
                    return host + value[len(place):]
        return value

    with open(kernel, encoding="utf-8") as file:
        project = json.load(file)
    with open(metadata, encoding="utf-8") as file:
        packages = json.load(file)
    crates = kernel_crates(project, os.environ["SKUA_OBJ"])
    crates += cargo_crates(packages, *messages(artifacts), len(crates))
    project = here({"sysroot": project["sysroot"], "crates": crates})
    missing = [crate["root_module"] for crate in crates if not os.path.exists(crate["root_module"])]
    if missing:
        sys.exit(f"rust-project.py: there is no {missing[0]}")
    json.dump(project, sys.stdout, indent=1)


if __name__ == "__main__":
    main(*sys.argv[1:])
