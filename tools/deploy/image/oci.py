"""An image as an OCI layout: the same entries make the same bytes. https://github.com/opencontainers/image-spec"""

import datetime
import gzip
import hashlib
import io
import json
import platform
import tarfile

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def layer(entries, epoch):
    """A layer of path: (TarInfo, bytes or None), as (bytes of the .tar.gz, digest of the .tar)."""
    entries = dict(entries)
    # Folders that nothing named.
    for path in list(entries):
        parts = path.split("/")
        for depth in range(1, len(parts)):
            folder = "/".join(parts[:depth])
            if folder not in entries:
                info = tarfile.TarInfo(folder)
                info.type, info.mode = tarfile.DIRTYPE, 0o755
                entries[folder] = (info, None)
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w", format=tarfile.GNU_FORMAT) as tar:
        # A hard link comes after what it names: links last, each group in order.
        for path, (member, data) in sorted(entries.items(), key=lambda item: (item[1][0].islnk(), item[0])):
            info = tarfile.TarInfo(path)
            info.type, info.mode, info.uid, info.gid = member.type, member.mode, member.uid, member.gid
            info.linkname = member.linkname.removeprefix("./") if member.islnk() else member.linkname
            info.mtime = epoch
            info.size = len(data) if data is not None else 0
            tar.addfile(info, io.BytesIO(data) if data is not None else None)
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb", compresslevel=9, mtime=0, filename="") as file:
        file.write(plain.getvalue())
    return packed.getvalue(), "sha256:" + hashlib.sha256(plain.getvalue()).hexdigest()


def write_layout(folder, layers, epoch, tag, config):
    """Returns the manifest's digest and the bytes of all blobs."""
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    total = 0

    def blob(data, media_type):
        nonlocal total
        digest = hashlib.sha256(data).hexdigest()
        (blobs / digest).write_bytes(data)
        total += len(data)
        return {"mediaType": media_type, "digest": "sha256:" + digest, "size": len(data)}

    def json_blob(value, media_type):
        return blob(json.dumps(value, sort_keys=True, separators=(",", ":")).encode(), media_type)

    created = datetime.datetime.fromtimestamp(epoch, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    layer_blobs = [blob(packed, "application/vnd.oci.image.layer.v1.tar+gzip") for packed, _ in layers]
    config_blob = json_blob({
        "created": created,
        "architecture": ARCHITECTURES[platform.machine()],
        "os": "linux",
        "config": config,
        "rootfs": {"type": "layers", "diff_ids": [diff for _, diff in layers]},
        "history": [{"created": created, "created_by": "tools/deploy/image/build"} for _ in layers],
    }, "application/vnd.oci.image.config.v1+json")
    manifest = json_blob({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": config_blob,
        "layers": layer_blobs,
    }, "application/vnd.oci.image.manifest.v1+json")
    index = {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json",
             "manifests": [{**manifest, "annotations": {"org.opencontainers.image.ref.name": tag}}]}
    (folder / "index.json").write_text(json.dumps(index, sort_keys=True, indent=1) + "\n")
    (folder / "oci-layout").write_text('{"imageLayoutVersion":"1.0.0"}\n')
    return manifest["digest"], total
