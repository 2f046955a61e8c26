// Command archive makes an image of a root file system, without a Docker daemon and without a
// registry:
//
//	archive ROOT PROGRAM NAME OUT.tar
//
// ROOT is a folder that deploy/image/rootfs has made, PROGRAM the path in it that the image runs,
// NAME the image's name with a tag (docker.io/local/tendril:dev). OUT.tar can be loaded by `docker
// load`, `podman load`, `ctr images import`, `skopeo copy docker-archive:OUT.tar` and `crane push`.
// The same root file system makes the same archive, byte for byte.
package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

func main() {
	if len(os.Args) != 5 {
		fmt.Fprintln(os.Stderr, "archive: want ROOT PROGRAM NAME OUT.tar")
		os.Exit(2)
	}
	digest, err := write(os.Args[1], os.Args[2], os.Args[3], os.Args[4])
	if err != nil {
		fmt.Fprintf(os.Stderr, "archive: %v\n", err)
		os.Exit(1)
	}
	fmt.Println(os.Args[3], digest)
}

// configuration is how a container of the image is run, unless the operator says otherwise. The
// Dockerfile says the same.
func configuration(program string) v1.Config {
	c := v1.Config{
		Env:        []string{"PATH=/usr/local/bin:/usr/bin"},
		User:       "65532:65532",
		WorkingDir: "/var/lib/tendril",
		Entrypoint: []string{program},
	}
	if path.Base(program) == "tendril" {
		// No client reaches a container on its loopback address. Who publishes no port opens nothing.
		c.Env = append(c.Env, "NGIT_BIND_ADDRESS=0.0.0.0:7334")
		c.ExposedPorts = map[string]struct{}{"7334/tcp": {}}
		c.Volumes = map[string]struct{}{c.WorkingDir: {}}
		// There is no shell and no curl; the program asks its own NATS.
		c.Healthcheck = &v1.HealthConfig{Test: []string{"CMD", program, "status", "--wait=5s"},
			Interval: 30 * time.Second, Timeout: 10 * time.Second, StartPeriod: time.Minute, Retries: 3}
	}
	return c
}

// write writes the image of a root file system as an archive, whole or not at all.
func write(root, program, named, out string) (digest v1.Hash, err error) {
	tag, err := name.NewTag(named, name.StrictValidation)
	if err != nil {
		return digest, fmt.Errorf("%q: %w; want a name like docker.io/local/tendril:dev", named, err)
	}
	if stat, err := os.Stat(filepath.Join(root, program)); err != nil || stat.Mode()&0o111 == 0 {
		return digest, fmt.Errorf("%s is no program in %s", program, root)
	}
	var files bytes.Buffer
	if err := pack(&files, root); err != nil {
		return digest, fmt.Errorf("pack %s: %w", root, err)
	}
	open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(files.Bytes())), nil }
	layer, err := tarball.LayerFromOpener(open, tarball.WithCompressionLevel(gzip.BestCompression),
		tarball.WithCompressedCaching)
	if err != nil {
		return digest, fmt.Errorf("make the layer: %w", err)
	}
	image, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		return digest, fmt.Errorf("append the layer: %w", err)
	}
	config, err := image.ConfigFile()
	if err != nil {
		return digest, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture, config.Config = "linux", runtime.GOARCH, configuration(program)
	if image, err = mutate.ConfigFile(image, config); err != nil {
		return digest, err
	}
	part := out + ".part"
	defer os.Remove(part)
	if err := tarball.WriteToFile(part, tag, image); err != nil {
		return digest, fmt.Errorf("write %s: %w", out, err)
	}
	if err := os.Rename(part, out); err != nil {
		return digest, err
	}
	return image.Digest()
}

// pack writes what is in a folder as a tar that says nothing of when, where and by whom it was
// made: in the order of names, owned by root, with the time 0.
func pack(w io.Writer, folder string) error {
	archive := tar.NewWriter(w)
	err := filepath.WalkDir(folder, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || path == folder {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		link := ""
		if info.Mode()&fs.ModeSymlink != 0 {
			if link, err = os.Readlink(path); err != nil {
				return err
			}
		}
		made, err := tar.FileInfoHeader(info, link)
		if err != nil {
			return err
		}
		header := tar.Header{Typeflag: made.Typeflag, Linkname: made.Linkname, Size: made.Size, Mode: made.Mode,
			ModTime: time.Unix(0, 0)}
		if header.Name, err = filepath.Rel(folder, path); err != nil {
			return err
		}
		if entry.IsDir() {
			header.Name += "/"
		}
		if err := archive.WriteHeader(&header); err != nil || !info.Mode().IsRegular() {
			return err
		}
		content, err := os.ReadFile(path)
		if err == nil {
			_, err = archive.Write(content)
		}
		return err
	})
	if err != nil {
		return err
	}
	return archive.Close()
}
