package githttp

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/format/pktline"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp/sideband"

	"tendril.dev/lib/nostr"
)

// Bounds of what stands before the pack of a push.
const (
	maxCommands     = 10_000
	maxCommandBytes = 4 << 20
)

// Command is one reference that a push changes. Old or New is ZeroID where the reference is created
// or deleted.
type Command struct{ Name, Old, New string }

// Delete reports whether the reference is to go.
func (c Command) Delete() bool { return c.New == ZeroID }

// ZeroID is how git writes that there is no object.
const ZeroID = "0000000000000000000000000000000000000000"

// pushRequest is what a push asks for, before its pack.
type pushRequest struct {
	commands []Command
	report   bool // the client reads a report
	sideband bool // it reads side-band-64k
	options  bool // push options follow the commands
}

// malformedError is a request that breaks the protocol.
type malformedError struct{ reason string }

func (e *malformedError) Error() string { return e.reason }

func malformed(format string, args ...any) error {
	return &malformedError{fmt.Sprintf(format, args...)}
}

// readPush reads the commands of a push (gitprotocol-pack, "Reference Update Request") and leaves
// the reader at the pack. A lone flush, by which git asks whether it may push, is a push without
// commands.
//
// The shallow lines of a client that has only a part of the history are read and forgotten: what it
// sends must stand on what is here, shallow or not, and git must check it so.
func readPush(r io.Reader) (*pushRequest, error) {
	lines := &lineReader{lines: pktline.NewScanner(r)}
	p := &pushRequest{}
	seen := map[string]bool{}
	for {
		line, err := lines.next()
		if err != nil {
			return nil, err
		}
		if len(line) == 0 {
			break
		}
		text := strings.TrimSuffix(string(line), "\n")
		if id, shallow := strings.CutPrefix(text, "shallow "); shallow && len(p.commands) == 0 {
			if !isHex40(id) {
				return nil, malformed("a shallow line names no object")
			}
			continue
		}
		if strings.HasPrefix(text, "push-cert") {
			return nil, malformed("signed pushes are not taken")
		}
		if len(p.commands) == 0 {
			var capabilities string
			text, capabilities, _ = strings.Cut(text, "\x00")
			if err := p.take(capabilities); err != nil {
				return nil, err
			}
		}
		command, err := parseCommand(text)
		if err != nil {
			return nil, err
		}
		if seen[command.Name] {
			return nil, malformed("the reference %q is named twice", command.Name)
		}
		seen[command.Name] = true
		if len(p.commands) == maxCommands {
			return nil, malformed("more than %d references in one push", maxCommands)
		}
		p.commands = append(p.commands, command)
	}
	if p.options {
		return p, lines.skipSection()
	}
	return p, nil
}

// take reads the client's capabilities. Those that are not named here change nothing.
func (p *pushRequest) take(capabilities string) error {
	for capability := range strings.FieldsSeq(capabilities) {
		switch name, value, _ := strings.Cut(capability, "="); name {
		case "report-status", "report-status-v2":
			p.report = true
		case "side-band-64k":
			p.sideband = true
		case "push-options":
			p.options = true
		case "object-format":
			if value != "sha1" {
				return malformed("the object format %q is not taken, only sha1", value)
			}
		}
	}
	return nil
}

// parseCommand reads "<old> <new> <name>".
func parseCommand(line string) (Command, error) {
	before, rest, _ := strings.Cut(line, " ")
	after, name, found := strings.Cut(rest, " ")
	if !found || !isHex40(before) || !isHex40(after) {
		return Command{}, malformed("a command is not \"<old id> <new id> <reference>\"")
	}
	if before == ZeroID && after == ZeroID {
		return Command{}, malformed("a command changes nothing")
	}
	if !strings.HasPrefix(name, "refs/") {
		return Command{}, malformed("the reference %q is not below refs/", name)
	}
	if err := nostr.CheckRefName(name); err != nil {
		return Command{}, malformed("%v", err)
	}
	return Command{Name: name, Old: before, New: after}, nil
}

func isHex40(s string) bool {
	return s == ZeroID || (len(s) == len(ZeroID) && nostr.IsObjectID(s))
}

// encode writes the commands as receive-pack is to read them. The capabilities are ours and not the
// client's: all or nothing, and a plain report, from which we make the answer.
func (p *pushRequest) encode() []byte {
	var b bytes.Buffer
	for i, c := range p.commands {
		line := c.Old + " " + c.New + " " + c.Name
		if i == 0 {
			line += "\x00 report-status atomic quiet"
		}
		b.WriteString(pktLine(line))
	}
	b.WriteString("0000")
	return b.Bytes()
}

// sendsPack reports whether a pack follows the commands.
func (p *pushRequest) sendsPack() bool {
	return slices.ContainsFunc(p.commands, func(c Command) bool { return !c.Delete() })
}

// lineReader reads pkt-lines up to a bound.
type lineReader struct {
	lines *pktline.Scanner
	bytes int
}

// next returns the payload of the next line, valid until the one after; a flush is empty.
func (l *lineReader) next() ([]byte, error) {
	if !l.lines.Scan() {
		err := l.lines.Err()
		_, spoken := errors.AsType[*pktline.ErrorLine](err)
		switch {
		case err == nil, errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			return nil, malformed("the commands end too soon")
		case errors.Is(err, pktline.ErrInvalidPktLen), spoken:
			return nil, malformed("the commands are not pkt-lines")
		}
		return nil, fmt.Errorf("read commands: %w", err)
	}
	line := l.lines.Bytes()
	if l.bytes += len(line) + 4; l.bytes > maxCommandBytes {
		return nil, malformed("the commands are longer than %d bytes", maxCommandBytes)
	}
	return line, nil
}

// skipSection reads up to the next flush.
func (l *lineReader) skipSection() error {
	for {
		line, err := l.next()
		if err != nil || len(line) == 0 {
			return err
		}
	}
}

// maxReason bounds the reason that stands behind each refused reference.
const maxReason = 300

// send writes a report and words for the user's terminal, in the form that the client asked for.
func (p *receiving) send(report *packp.ReportStatus, message string) error {
	var plain, whole bytes.Buffer
	if p.request.report {
		if err := report.Encode(&plain); err != nil {
			return err
		}
	}
	if p.request.sideband {
		mux := sideband.NewMuxer(sideband.Sideband64k, &whole)
		if message != "" {
			if _, err := mux.WriteChannel(sideband.ProgressMessage, []byte(strings.TrimRight(message, "\n")+"\n")); err != nil {
				return err
			}
		}
		if _, err := mux.Write(plain.Bytes()); err != nil {
			return err
		}
		whole.WriteString("0000")
	} else {
		whole = plain
	}
	if _, err := p.out.Write(whole.Bytes()); err != nil {
		return err
	}
	return p.out.begin()
}

// refusalReport says of every command that it was not carried out.
func refusalReport(commands []Command, reason string) *packp.ReportStatus {
	report := packp.NewReportStatus()
	report.UnpackStatus = "ok"
	line := oneLine(reason)
	for _, c := range commands {
		report.CommandStatuses = append(report.CommandStatuses,
			&packp.CommandStatus{ReferenceName: plumbing.ReferenceName(c.Name), Status: line})
	}
	return report
}

// oneLine makes a reason fit behind a reference.
func oneLine(reason string) string {
	line := strings.Join(strings.FieldsFunc(reason, func(c rune) bool { return unicode.IsSpace(c) || unicode.IsControl(c) }), " ")
	if len(line) > maxReason {
		line = strings.ToValidUTF8(line[:maxReason], "") + "…"
	}
	if line == "" || line == "ok" {
		return "refused"
	}
	return line
}
