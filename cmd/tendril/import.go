package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"tendril.dev/cmd/tendril/check"
	"tendril.dev/cmd/tendril/gittree"
	"tendril.dev/cmd/tendril/importer"
	"tendril.dev/cmd/tendril/relayread"
	"tendril.dev/lib/bus"
	"tendril.dev/lib/candidates"
	"tendril.dev/lib/config"
	"tendril.dev/proto"
)

// imports is `tendril import`.
type imports struct {
	File    string        `arg:"" placeholder:"FILE" help:"Events, the JSON of one on each line; - for standard input; the ws(s):// URL of a relay for all that it serves."`
	Git     string        `placeholder:"DIR" help:"Also push the bare repositories of this folder, <npub>/<identifier>.git, as their owners would: what the state events of the file say."`
	Server  string        `placeholder:"URL" help:"Where to push them: the http(s) URL of the front door. Default: NGIT_BIND_ADDRESS."`
	Refused string        `placeholder:"FILE" help:"Write what is not accepted to this file, a line of JSON each: line, id, kind, reason."`
	For     time.Duration `name:"wait-for-git" placeholder:"DURATION" help:"How long to wait for git data that is hunted for, and then to offer again what depends on it."`
	Temp    string        `placeholder:"DIR" help:"Folder of a temporary file, which takes about as much room as the input. Default: that of the system."`
	JSON    bool          `name:"json" help:"Print the result as JSON."`
	Quiet   bool          `short:"q" help:"Print no progress."`
	Wait    time.Duration `default:"10s" help:"How long NATS may take to answer at first."`

	BindAddress string `env:"NGIT_BIND_ADDRESS" name:"bind-address" default:"127.0.0.1:7334" help:"Where the front door listens."`
	GitBinary   string `env:"NGIT_GIT_BINARY" name:"git-binary" default:"git" help:"The git program."`
	config.Bus  `embed:"" group:"Bus"`
}

// Run implements the command.
func (i *imports) Run() error {
	server, err := i.server()
	if err != nil {
		return err
	}
	ctx, stop := untilSignal()
	defer stop()
	shown := newProgress(i.Quiet)
	in, missing, err := i.open(ctx, shown)
	if err != nil {
		return err
	}
	defer in.Close()

	m := importer.Import{Temp: i.Temp, Wait: i.For, Progress: shown.at}
	var trees *importer.Trees
	if i.Git != "" {
		told := func(done, of int) { shown.at("repositories", done, of) }
		if trees, err = importer.NewTrees(ctx, gittree.Git{Program: i.GitBinary}, i.Git, server, told); err != nil {
			return err
		}
		m.Repositories = trees
	}
	b, err := reach(i.Bus, "import", proto.UserImport, i.Wait)
	if err != nil {
		return err
	}
	defer b.Close()
	if err := i.look(ctx, b); err != nil {
		return cmp.Or(interrupted(ctx), err)
	}
	if i.Refused != "" {
		file, err := os.Create(i.Refused)
		if err != nil {
			return err
		}
		defer file.Close()
		buffered := bufio.NewWriter(file)
		defer buffered.Flush()
		m.Refused = buffered
	}
	counts, err := runImport(ctx, b, &m, in)
	shown.end()
	if err == nil {
		err = missing()
	}
	return i.conclude(ctx, counts, trees, err)
}

// open opens what is read: a file, standard input or a relay. missing says afterwards what could
// not be read of it.
func (i *imports) open(ctx context.Context, shown *progress) (in io.ReadCloser, missing func() error, err error) {
	missing = func() error { return nil }
	if relayread.Named(i.File) {
		r := relayread.New(i.File, func(events int) { shown.at("events of the relay", events, -1) })
		return r.Open(ctx), r.Missing, nil
	}
	if i.File == "-" {
		return interruptible(ctx, os.Stdin), missing, nil
	}
	info, err := os.Stat(i.File)
	switch {
	case errors.Is(err, os.ErrNotExist) && strings.Contains(i.File, "://"):
		return nil, nil, fmt.Errorf("%s is no URL of a relay, and no file; want ws:// or wss://", i.File)
	case err == nil && info.IsDir():
		return nil, nil, fmt.Errorf("%s is a folder; want a file with the JSON of an event on each line (--git takes a folder of repositories)", i.File)
	case err == nil && i.Refused != "":
		if other, err := os.Stat(i.Refused); err == nil && os.SameFile(info, other) {
			return nil, nil, fmt.Errorf("--refused is %q, which is the file that is read; want another one", i.Refused)
		}
	}
	file, err := os.Open(i.File)
	if err != nil {
		return nil, nil, err
	}
	if !info.Mode().IsRegular() {
		return interruptible(ctx, file), missing, nil
	}
	return file, missing, nil
}

// interruptible returns what a terminal or a pipe gives until ctx ends, also where a read would not
// return because nothing more is written there.
func interruptible(ctx context.Context, from io.Reader) io.ReadCloser {
	out, into := io.Pipe()
	context.AfterFunc(ctx, func() { into.CloseWithError(ctx.Err()) })
	go func() {
		_, err := io.Copy(into, from)
		into.CloseWithError(err)
	}()
	return out
}

// server is where repositories are pushed to.
func (i *imports) server() (string, error) {
	if i.Server != "" {
		if !isHTTP(i.Server) {
			return "", fmt.Errorf("--server is %q; want the http(s) URL of the front door, like https://git.example.com", i.Server)
		}
		return i.Server, nil
	}
	host, port, err := net.SplitHostPort(i.BindAddress)
	if err != nil {
		return "", &config.Error{Setting: "NGIT_BIND_ADDRESS", Value: i.BindAddress, Reason: "want host:port"}
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	return "http://" + net.JoinHostPort(host, port), nil
}

func isHTTP(url string) bool {
	return strings.HasPrefix(url, "http://") || strings.HasPrefix(url, "https://")
}

// look asks whether events are taken there.
func (i *imports) look(ctx context.Context, b *bus.Bus) error {
	ctx, cancel := context.WithTimeout(ctx, i.Wait)
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

// runImport imports what in has.
func runImport(ctx context.Context, b *bus.Bus, m *importer.Import, in io.Reader) (importer.Counts, error) {
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
	return m.Run(ctx, in)
}

// conclude prints what came of an import. Its error is why the command failed.
func (i *imports) conclude(ctx context.Context, counts importer.Counts, trees *importer.Trees, err error) error {
	result := importResult{Counts: counts}
	if trees != nil {
		pushed := trees.Pushed()
		result.Pushed = &pushed
	}
	if i.JSON {
		err = errors.Join(err, printJSON(os.Stdout, result))
	} else {
		result.write(os.Stdout, i.Refused)
	}
	if err == nil && result.Pushed != nil && len(result.Pushed.Failed) > 0 {
		err = fmt.Errorf("%s could not be pushed", check.Count(len(result.Pushed.Failed), "repository", "repositories"))
	}
	return cmp.Or(interrupted(ctx), err)
}

// interrupted is the error of an import whose ctx has ended; nil: it has not.
func interrupted(ctx context.Context) error {
	if ctx.Err() == nil {
		return nil
	}
	return errors.New("interrupted: run it again to go on; what is here already is counted as known then")
}

// importResult is what is printed.
type importResult struct {
	importer.Counts
	Pushed *importer.Pushed `json:"git,omitempty"`
}

func (r importResult) write(out io.Writer, refused string) {
	line := func(n int, always bool, what string) {
		if always || n > 0 {
			fmt.Fprintf(out, "%9d  %s\n", n, what)
		}
	}
	line(r.Lines, true, "lines read")
	line(r.Accepted, true, "accepted")
	line(r.Held, true, "held: they wait for their git data")
	line(r.Known, true, "known already, or a newer one is in their place")
	where := ""
	switch {
	case r.Refused > 0 && refused == "":
		where = " (--refused FILE writes down which and why)"
	case r.Refused > 0:
		where = ", see " + refused
	}
	line(r.Refused, true, "refused"+where)
	line(r.Invalid, false, "of these are no genuine events")
	line(r.Left, false, "not decided")
	if p := r.Pushed; p != nil {
		line(p.Repositories, true, "repositories pushed, or as they should be")
		line(p.Empty, false, "repositories without branches and tags")
		line(p.Pulls, true, "commits of pull requests pushed")
		line(p.Waiting, false, "commits of pull requests not pushed: their events are not in the file, or were refused")
		for _, why := range p.Failed {
			fmt.Fprintf(out, "           not pushed: %s\n", why)
		}
	}
}
