package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"runtime"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// configuration is how a container of the image is run, unless who runs it says otherwise. The
// Dockerfile says the same.
func configuration(program string) v1.Config {
	return v1.Config{
		Env:        []string{"PATH=/usr/local/bin:/usr/bin"},
		User:       "65532:65532",
		WorkingDir: "/var/lib/tendril",
		Entrypoint: []string{program},
	}
}

// summary says what was made. Sizes are of the layer, in bytes.
type summary struct {
	digest, layer        v1.Hash
	compressed, unpacked int64
}

// write writes the image of a root file system as an archive.
func write(root, program, named, out string) (summary, error) {
	tag, err := name.NewTag(named, name.StrictValidation)
	if err != nil {
		return summary{}, fmt.Errorf("%q: %w; want a name like docker.io/local/tendril:dev", named, err)
	}
	if stat, err := os.Stat(filepath.Join(root, program)); err != nil || stat.Mode()&0o111 == 0 {
		return summary{}, fmt.Errorf("%s is no program in %s", program, root)
	}
	var files bytes.Buffer
	if err := pack(&files, root, nil); err != nil {
		return summary{}, fmt.Errorf("pack %s: %w", root, err)
	}
	image, layer, err := imageOf(files.Bytes(), program)
	if err != nil {
		return summary{}, err
	}
	made := summary{unpacked: int64(files.Len())}
	if made.digest, err = image.Digest(); err != nil {
		return summary{}, err
	}
	if made.layer, err = layer.Digest(); err != nil {
		return summary{}, err
	}
	if made.compressed, err = layer.Size(); err != nil {
		return summary{}, err
	}
	folder, err := os.MkdirTemp("", "tendril-image-")
	if err != nil {
		return summary{}, err
	}
	defer os.RemoveAll(folder)
	if err := lay(folder, image, named, tag.TagStr()); err != nil {
		return summary{}, fmt.Errorf("lay out the image: %w", err)
	}
	return made, writeFile(out, func(w io.Writer) error { return pack(w, folder, regular) })
}

// imageOf makes an image of one layer, which is the tar.
func imageOf(files []byte, program string) (v1.Image, v1.Layer, error) {
	layer, err := tarball.LayerFromOpener(
		func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(files)), nil },
		tarball.WithCompressionLevel(gzip.BestCompression), tarball.WithCompressedCaching, tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return nil, nil, fmt.Errorf("make the layer: %w", err)
	}
	base := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	image, err := mutate.AppendLayers(base, layer)
	if err != nil {
		return nil, nil, fmt.Errorf("append the layer: %w", err)
	}
	file, err := image.ConfigFile()
	if err != nil {
		return nil, nil, err
	}
	file = file.DeepCopy()
	file.OS, file.Architecture, file.Config = "linux", runtime.GOARCH, configuration(program)
	image, err = mutate.ConfigFile(image, file)
	return image, layer, err
}

// lay writes an OCI layout into a folder, and beside its index the manifest.json by which Docker
// finds the same files.
func lay(folder string, image v1.Image, named, tag string) error {
	at, err := layout.Write(folder, empty.Index)
	if err != nil {
		return err
	}
	err = at.AppendImage(image,
		layout.WithPlatform(v1.Platform{OS: "linux", Architecture: runtime.GOARCH}),
		layout.WithAnnotations(map[string]string{
			"io.containerd.image.name":          named,
			"org.opencontainers.image.ref.name": tag,
		}))
	if err != nil {
		return err
	}
	manifest, err := image.Manifest()
	if err != nil {
		return err
	}
	docker := struct {
		Config           string
		RepoTags, Layers []string
	}{Config: blob(manifest.Config.Digest), RepoTags: []string{named}}
	for _, l := range manifest.Layers {
		docker.Layers = append(docker.Layers, blob(l.Digest))
	}
	raw, err := json.Marshal([]any{docker})
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(folder, "manifest.json"), raw, 0o644)
}

// blob is the path of a blob in an OCI layout.
func blob(h v1.Hash) string { return path.Join("blobs", h.Algorithm, h.Hex) }

// regular gives files and folders the rights that they have in an archive of ours, whatever the
// umask says.
func regular(h *tar.Header) {
	h.Mode = 0o644
	if h.Typeflag == tar.TypeDir {
		h.Mode = 0o755
	}
}

// writeFile makes a file of what fill writes. It is there whole or not at all.
func writeFile(path string, fill func(io.Writer) error) error {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	err = fill(f)
	if err == nil {
		err = f.Chmod(0o644)
	}
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}
