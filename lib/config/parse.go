package config

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/alecthomas/kong"
	"github.com/dustin/go-humanize"

	"tendril.dev/lib/nostr"
	"tendril.dev/lib/obs"
)

// Error is a wrong value of a setting, as one sentence for the operator. The settings that come
// beside it must not be used.
type Error struct {
	Setting string // NGIT_X
	Value   string // as it was given; "": none, or one that must not be printed
	Reason  string // what is wrong with it, and what would be right
}

func (e *Error) Error() string {
	if e.Value == "" {
		return e.Setting + " " + e.Reason
	}
	return fmt.Sprintf("%s is %.200q: %s", e.Setting, e.Value, e.Reason)
}

// IsSetting reports whether a setting is wrong, wherever it was set, and not a flag of a command.
func (e *Error) IsSetting() bool { return strings.HasPrefix(e.Setting, prefix) }

// Parse reads the settings in a command line of the program, for any command: flags over
// environment over `.env` over defaults, checked. An error is one sentence for the operator.
func (s *Source) Parse(args []string) (Settings, error) {
	type word string
	var grammar struct {
		Settings `embed:""`
		Command  word   `arg:"" optional:""`
		Words    []word `arg:"" optional:""`
	}
	parser, err := NewParser(&grammar, s, kong.Name("tendril"))
	if err != nil {
		return Settings{}, err
	}
	if _, err := parser.Parse(args); err != nil {
		return Settings{}, Sentence(err)
	}
	return grammar.Complete(s)
}

// NewParser makes a parser of a grammar that holds Settings somewhere, alone or as the flags of a
// command. What flags do not say, src does. After parsing, [Settings.Complete] must be called.
func NewParser(grammar any, src *Source, options ...kong.Option) (*kong.Kong, error) {
	all := []kong.Option{
		kong.Vars{"version": "tendril " + obs.Version()},
		kong.PostBuild(func(k *kong.Kong) error { ourFlags(k); return nil }),
		kong.Resolvers(kong.ResolverFunc(src.resolve)), kong.ExplicitGroups(groups), kong.ConfigureHelp(helpOptions),
		kong.Help(shortHelp),
		kong.NamedMapper("bytes", mapper{}), kong.TypeMapper(reflect.TypeFor[bool](), boolMapper{}),
	}
	for _, t := range []reflect.Type{
		reflect.TypeFor[string](), reflect.TypeFor[[]string](), reflect.TypeFor[int](), reflect.TypeFor[int64](),
		reflect.TypeFor[time.Duration](),
	} {
		all = append(all, kong.TypeMapper(t, mapper{}))
	}
	parser, err := kong.New(grammar, append(all, options...)...)
	if err != nil {
		return nil, fmt.Errorf("declare settings: %w", err)
	}
	return parser, nil
}

// ourFlags names every flag for its setting: NGIT_MAX_CONNECTIONS is --max-connections. It takes
// all but the main settings out of --help. It also keeps kong from reading the environment by
// itself: that would take an empty value for a value, and it knows no `.env`.
func ourFlags(k *kong.Kong) {
	k.Model.HelpFlag.Help = "Print this help and exit."
	eachFlag(k.Model.Node, func(flag *kong.Flag) {
		flag.Envs, flag.Tag.Envs = nil, nil
		if env := flag.Tag.Get("env"); env != "" {
			flag.Name = flagName(env)
			flag.Hidden = !flag.Tag.Has("main") || flag.Tag.Has("noflag")
		}
	})
}

// eachFlag calls visit for every flag of a command and its commands.
func eachFlag(node *kong.Node, visit func(*kong.Flag)) {
	for _, flag := range node.Flags {
		visit(flag)
	}
	for _, child := range node.Children {
		eachFlag(child, visit)
	}
}

// flagName is the flag of a setting, without the dashes.
func flagName(env string) string {
	return strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(env, prefix)), "_", "-")
}

// Complete checks settings that were just parsed, brings the domain to its one spelling, drops
// malformed entries of lists of who is not welcome, and warns of them and of names in src that are
// no settings.
func (s Settings) Complete(src *Source) (Settings, error) {
	if err := src.refuse(); err != nil {
		return s, err
	}
	s.Domain = strings.TrimRight(s.Domain, "/")
	dropped := s.Policy.dropMalformed()
	if err := s.Check(); err != nil {
		return s, err
	}
	s.Domain, _ = nostr.NormalizeDomain(s.Domain) // checked, as what follows
	s.BasePath, _ = nostr.NormalizeBasePath(s.BasePath)
	s.Warnings = slices.Concat(src.strangers(), dropped, s.warnings())
	return s, nil
}

// Sentence takes out of a parser's error what an operator needs to read: what is wrong with a
// setting, or with the command line, and then which `--help` says what would be right.
func Sentence(err error) error {
	if wrong, ok := errors.AsType[*Error](err); ok {
		return wrong
	}
	if parse, ok := errors.AsType[*kong.ParseError](err); ok {
		line := parse.Context.Model.Name
		for _, step := range parse.Context.Path {
			if step.Command != nil {
				line += " " + step.Command.Name
			}
		}
		return fmt.Errorf("%w (see \"%s --help\")", err, line)
	}
	return err
}

// decode reads a value of any type that settings have. A list grows: its flag may be repeated.
func decode(text, kind string, target reflect.Value) error {
	text = strings.TrimSpace(text)
	switch to := target.Addr().Interface().(type) {
	case *string:
		*to = text
	case *[]string:
		for item := range strings.SplitSeq(text, ",") {
			if item = strings.TrimSpace(item); item != "" {
				*to = append(*to, item)
			}
		}
	case *time.Duration:
		d, err := time.ParseDuration(text)
		if err != nil {
			return errors.New("want a time with its unit, like 500ms, 30s, 5m or 24h")
		}
		*to = d
	case *bool:
		on, legal := switches[strings.ToLower(text)]
		if !legal {
			return errors.New("want true or false")
		}
		*to = on
	default:
		if kind == "bytes" {
			n, err := humanize.ParseBytes(text)
			if err != nil || n > 1<<62 {
				return errors.New("want a size, like 64MiB or 2GiB, or a number of bytes")
			}
			target.SetInt(int64(n))
			return nil
		}
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return errors.New("want a whole number")
		}
		target.SetInt(n)
	}
	return nil
}

// switches are the values of a switch.
var switches = map[string]bool{"true": true, "1": true, "yes": true, "on": true, "false": false, "0": false,
	"no": false, "off": false}

// mapper reads values for kong. A wrong one gives an *Error.
type mapper struct{}

// Decode implements kong.Mapper.
func (mapper) Decode(ctx *kong.DecodeContext, target reflect.Value) error {
	flag := "--" + ctx.Value.Name
	if ctx.Scan.Peek().Type == kong.EOLToken {
		return &Error{flag, "", "has no value: want " + flag + "=…"}
	}
	token := ctx.Scan.Pop()
	if !token.IsValue() {
		return &Error{flag, token.String(), "is no value: want " + flag + "=…"}
	}
	text := token.String()
	if err := decode(text, ctx.Value.Tag.Type, target); err != nil {
		name := ctx.Value.Tag.Get("env")
		if name == "" {
			name = ctx.Value.ShortSummary()
		}
		return &Error{name, text, err.Error()}
	}
	return nil
}

// boolMapper reads switches: --x, --x=false, --x false, NGIT_X=true.
type boolMapper struct{ mapper }

// IsBool tells kong that the flag needs no value.
func (boolMapper) IsBool() bool { return true }

// Decode implements kong.Mapper.
func (m boolMapper) Decode(ctx *kong.DecodeContext, target reflect.Value) error {
	next := ctx.Scan.Peek()
	_, legal := switches[strings.ToLower(next.String())]
	if next.Type == kong.FlagValueToken || next.Type == kong.UntypedToken && legal {
		return m.mapper.Decode(ctx, target)
	}
	target.SetBool(true) // the switch alone; what comes next is not its value
	return nil
}
