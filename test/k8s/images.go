package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// The images of this test. Their names are its own: it touches no image that something else runs.
const (
	imageTendril = "docker.io/local/tendril:k8s-test"
	imageNext    = "docker.io/local/tendril:k8s-test-next" // another version, to roll out
	imageNATS    = "docker.io/local/nats:k8s-test"
	imageWorld   = "docker.io/local/tendril-world:k8s-test"
)

// image is an image that was built and brought into the cluster.
type image struct {
	name  string
	bytes int64 // of its archive
}

// buildImages builds all images and brings them into the cluster.
func buildImages(ctx context.Context, load string) ([]image, error) {
	fmt.Println("== images ==")
	loader, err := loaderOf(load, os.Getenv, exec.LookPath)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "tendril-images-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	var images []image
	for _, build := range []struct {
		name, env string
		args      []string // of deploy/image/build: package, and what git it needs
	}{
		{imageTendril, "", []string{"./cmd/tendril", "git"}},
		{imageNext, "VERSION=next", []string{"./cmd/tendril", "git"}},
		{imageNATS, "CGO_ENABLED=0", []string{"github.com/nats-io/nats-server/v2"}},
		{imageWorld, "", []string{"./test/k8s/world", "git", "http-backend", "remote-http"}},
	} {
		began := time.Now()
		archive := filepath.Join(dir, fmt.Sprintf("%d.tar", len(images)))
		cmd := exec.CommandContext(ctx, "deploy/image/build", append([]string{build.name, archive}, build.args...)...)
		if build.env != "" {
			cmd.Env = append(os.Environ(), build.env)
		}
		if out, err := cmd.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("build the image %s: %w\n%s", build.name, err, bytes.TrimSpace(out))
		}
		if out, err := exec.CommandContext(ctx, loader[0], append(loader[1:len(loader):len(loader)], archive)...).CombinedOutput(); err != nil {
			return nil, fmt.Errorf("%s %s: %w\n%s", strings.Join(loader, " "), archive, err, bytes.TrimSpace(out))
		}
		info, err := os.Stat(archive)
		if err != nil {
			return nil, err
		}
		if err := os.Remove(archive); err != nil {
			return nil, err
		}
		fmt.Printf("%-34s %6.1f MiB, built and loaded in %v\n", build.name, float64(info.Size())/(1<<20), time.Since(began).Round(time.Second))
		images = append(images, image{build.name, info.Size()})
	}
	return images, nil
}

// loaderOf is the command that brings an image archive, which follows as its last argument, into
// the cluster.
func loaderOf(load string, env func(string) string, look func(string) (string, error)) ([]string, error) {
	there := func(program string) bool { _, err := look(program); return err == nil }
	switch {
	case strings.TrimSpace(load) != "":
		return strings.Fields(load), nil
	case env("CONTAINERD_ADDRESS") != "":
		return []string{"ctr", "images", "import"}, nil
	case there("kind"):
		return []string{"kind", "load", "image-archive"}, nil
	case there("minikube"):
		return []string{"minikube", "image", "load"}, nil
	}
	return nil, errors.New("how do images come into the cluster? Set K8S_LOAD to a command that is given an image archive as its last argument, " +
		"or CONTAINERD_ADDRESS to the socket of the node's containerd; kind and minikube are found by themselves")
}
