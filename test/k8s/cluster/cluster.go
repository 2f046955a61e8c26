// Package cluster is what a person does with kubectl, from a program. Reads go through one `kubectl
// proxy`, so that asking often costs little; every change is a kubectl command, as an operator
// would type it.
package cluster

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"regexp"
	"strings"
	"time"
)

// Cluster is the one that kubectl is configured for.
type Cluster struct {
	proxy string // URL of `kubectl proxy`
}

// Connect starts a `kubectl proxy`, which ends with ctx.
func Connect(ctx context.Context) (*Cluster, error) {
	cmd := exec.CommandContext(ctx, "kubectl", "proxy", "--port=0")
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	var complaint bytes.Buffer
	cmd.Stderr = &complaint
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	first := make([]byte, 200)
	n, err := out.Read(first)
	at := regexp.MustCompile(`127\.0\.0\.1:\d+`).FindString(string(first[:n]))
	if at == "" {
		return nil, fmt.Errorf("kubectl proxy does not start (%v): %s", err, complaint.String())
	}
	go cmd.Wait()
	c := &Cluster{proxy: "http://" + at}
	var version struct {
		GitVersion string `json:"gitVersion"`
	}
	if err := c.Get(ctx, "/version", &version); err != nil {
		return nil, fmt.Errorf("no Kubernetes answers: %w", err)
	}
	return c, nil
}

// Get reads a path of the API server as JSON.
func (c *Cluster) Get(ctx context.Context, path string, into any) error {
	data, err := c.do(ctx, http.MethodGet, path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, into); err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	return nil
}

// Post sends a request without a body.
func (c *Cluster) Post(ctx context.Context, path string) error {
	_, err := c.do(ctx, http.MethodPost, path)
	return err
}

func (c *Cluster) do(ctx context.Context, method, path string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	body, err := c.open(ctx, method, path)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	data, err := io.ReadAll(io.LimitReader(body, 256<<20))
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", method, path, err)
	}
	return data, nil
}

// Lines sends a request without a body and gives each line of the answer to say, as it comes.
func (c *Cluster) Lines(ctx context.Context, path string, say func(line string)) error {
	body, err := c.open(ctx, http.MethodPost, path)
	if err != nil {
		return err
	}
	defer body.Close()
	lines := bufio.NewScanner(body)
	for lines.Scan() {
		say(lines.Text())
	}
	return lines.Err()
}

func (c *Cluster) open(ctx context.Context, method, path string) (io.ReadCloser, error) {
	request, err := http.NewRequestWithContext(ctx, method, c.proxy+path, nil)
	if err != nil {
		return nil, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusOK {
		defer response.Body.Close()
		text, _ := io.ReadAll(io.LimitReader(response.Body, 200))
		return nil, fmt.Errorf("%s %s: %s: %s", method, path, response.Status, text)
	}
	return response.Body, nil
}

// PodPath is the path of an HTTP port of a pod.
func PodPath(namespace, pod string, port int, path string) string {
	return fmt.Sprintf("/api/v1/namespaces/%s/pods/%s:%d/proxy%s", namespace, pod, port, path)
}

// Kubectl runs a command and returns what it prints; an error has that too.
func Kubectl(ctx context.Context, args ...string) (string, error) {
	return KubectlWith(ctx, "", args...)
}

// KubectlWith is Kubectl with something to read.
func KubectlWith(ctx context.Context, input string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "kubectl", args...)
	cmd.Stdin = strings.NewReader(input)
	var out, complaint bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &complaint
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(complaint.String()))
	}
	return out.String(), nil
}
