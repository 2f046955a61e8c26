package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"os"
	"strings"

	"github.com/nats-io/nats.go/jetstream"

	"tendril.dev/cmd/tendril/check"
	"tendril.dev/cmd/tendril/gittree"
	"tendril.dev/cmd/tendril/importer"
	"tendril.dev/lib/bus"
	"tendril.dev/lib/candidates"
	"tendril.dev/proto"
)

// imports is `tendril import`.
type imports struct {
	File    string `arg:"" placeholder:"FILE" help:"Events, the JSON of one on each line; - for standard input; the ws(s):// URL of a relay for all that it serves."`
	Git     string `placeholder:"DIR" help:"Also push the bare repositories of this folder, <npub>/<identifier>.git, as their owners would."`
	Server  string `placeholder:"URL" help:"Where to push them: the http(s) URL of the front door. Default: NGIT_BIND_ADDRESS."`
	Refused string `placeholder:"FILE" help:"Write what is not accepted to this file, a line of JSON each: line, id, kind, reason."`
	JSON    bool   `name:"json" help:"Print the result as JSON."`
	Quiet   bool   `short:"q" help:"Print no progress."`

	BindAddress string `env:"NGIT_BIND_ADDRESS" name:"bind-address" default:"127.0.0.1:7334" help:"Where the front door listens."`
	GitBinary   string `env:"NGIT_GIT_BINARY" name:"git-binary" default:"git" help:"The git program."`
	running     `embed:""`
}

// Run implements the command.
func (i *imports) Run() error {
	if i.Server == "" {
		i.Server = "http://" + i.BindAddress
		if strings.HasPrefix(i.BindAddress, ":") {
			i.Server = "http://127.0.0.1" + i.BindAddress
		}
	}
	if err := wantHTTP("--server", i.Server); err != nil {
		return err
	}
	shown := newProgress(i.Quiet)
	defer shown.end()
	relay := importer.NewRelay(i.File)
	lines, err := i.open(relay)
	if err != nil {
		return err
	}
	m, err := importer.New()
	if err != nil {
		return err
	}
	m.Progress = shown.at
	var trees *importer.Trees
	if i.Git != "" {
		repos, err := gittree.Find(i.Git)
		if err != nil {
			return err
		}
		trees = &importer.Trees{Git: gittree.Git(i.GitBinary), Server: i.Server, Repos: repos, Progress: shown.at}
		m.Push = trees.Push
	}
	b, err := i.reach("import", proto.UserImport)
	if err != nil {
		return err
	}
	defer b.Close()
	if err := i.look(b); err != nil {
		return err
	}
	// Until everything is read nothing is offered, and a signal ends the process.
	if err := m.Read(lines); err != nil {
		return err
	}
	refused := bufio.NewWriter(io.Discard)
	if i.Refused != "" {
		file, err := os.Create(i.Refused)
		if err != nil {
			return err
		}
		defer file.Close()
		refused.Reset(file)
	}
	ctx, stop := untilSignal()
	defer stop()
	counts, err := offer(ctx, b, m)
	if err == nil {
		err = relay.Missing()
	}
	if ctx.Err() != nil {
		err = errors.New("interrupted: run it again to go on; what is here already is counted as known then")
	}
	shown.end()
	return errors.Join(i.conclude(counts, trees, err), m.WriteRefused(refused), refused.Flush())
}

// open opens a relay, standard input or a file, which the end of the process closes.
func (i *imports) open(relay *importer.Relay) (iter.Seq2[importer.Line, error], error) {
	switch {
	case importer.IsRelay(i.File):
		return relay.Lines(), nil
	case i.File == "-":
		return importer.Lines(os.Stdin), nil
	}
	file, err := os.Open(i.File)
	if errors.Is(err, os.ErrNotExist) && strings.Contains(i.File, "://") {
		return nil, fmt.Errorf("%s is no URL of a relay, and no file; want ws:// or wss://", i.File)
	}
	if err != nil {
		return nil, err
	}
	read, err := file.Stat()
	if written, missing := os.Stat(i.Refused); missing == nil && os.SameFile(read, written) {
		return nil, fmt.Errorf("--refused is %q, which is the file that is read; want another one", i.Refused)
	}
	return importer.Lines(file), err
}

// wantHTTP refuses what is no URL of a server.
func wantHTTP(flag, url string) error {
	if strings.HasPrefix(url, "http://") || strings.HasPrefix(url, "https://") {
		return nil
	}
	return fmt.Errorf("%s is %q; want the http(s) URL of the server, like https://git.example.com", flag, url)
}

// look asks whether events are taken there.
func (i *imports) look(b *bus.Bus) error {
	ctx, cancel := context.WithTimeout(context.Background(), i.Wait)
	defer cancel()
	_, err := b.JS.Stream(ctx, proto.StreamSync)
	at := bus.Redacted(b.Conn.ConnectedUrl())
	switch {
	case errors.Is(err, jetstream.ErrStreamNotFound):
		return errNoStreams(b)
	case errors.Is(err, context.DeadlineExceeded) && b.Refused() > 0:
		return fmt.Errorf("this login may not offer events to NATS at %s; want that of the user %s (`tendril logins init FOLDER %s` makes it)", at, proto.UserImport, proto.UserImport)
	case err != nil:
		return fmt.Errorf("NATS at %s did not answer: %w", at, err)
	}
	return nil
}

// offer offers what was read.
func offer(ctx context.Context, b *bus.Bus, m *importer.Import) (importer.Counts, error) {
	sender, err := candidates.New(b.Conn, slog.New(slog.DiscardHandler))
	if err != nil {
		return importer.Counts{}, err
	}
	// The sender goes on after an interrupt: what was offered gets its verdict.
	sending, end := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan error, 1)
	go func() { ended <- sender.Run(sending) }()
	defer func() {
		end()
		<-ended
	}()
	m.Offerer = sender
	return m.Run(ctx)
}

// importResult is what is printed.
type importResult struct {
	importer.Counts
	Pushed *importer.Pushed `json:"git,omitempty"`
}

// conclude prints what came of an import. Its error is why the command failed.
func (i *imports) conclude(counts importer.Counts, trees *importer.Trees, err error) error {
	result := importResult{Counts: counts}
	if trees != nil {
		result.Pushed = &trees.Pushed
		if n := len(trees.Pushed.Failed); n > 0 {
			err = cmp.Or(err, fmt.Errorf("%s could not be pushed", check.Count(n, "repository", "repositories")))
		}
	}
	if i.JSON {
		return errors.Join(err, printJSON(os.Stdout, result))
	}
	result.write(os.Stdout, i.Refused)
	return err
}

func (r importResult) write(out io.Writer, refused string) {
	line := func(n int, what string) { fmt.Fprintf(out, "%9d  %s\n", n, what) }
	line(r.Lines, "lines read")
	line(r.Accepted, "accepted")
	line(r.Held, "held: they wait for their git data")
	line(r.Known, "known already, or a newer one is in their place")
	where := ""
	switch {
	case r.Refused > 0 && refused == "":
		where = " (--refused FILE writes down which and why)"
	case r.Refused > 0:
		where = ", see " + refused
	}
	line(r.Refused, "refused"+where)
	if r.Invalid > 0 {
		line(r.Invalid, "of these are no genuine events")
	}
	if r.Left > 0 {
		line(r.Left, "not decided")
	}
	if p := r.Pushed; p != nil {
		line(p.Repositories, "repositories pushed, or as they should be")
		line(p.Empty, "repositories without branches and tags")
		line(p.Pulls, "commits of pull requests pushed")
		for _, why := range p.Failed {
			fmt.Fprintf(out, "           not pushed: %s\n", why)
		}
	}
}
