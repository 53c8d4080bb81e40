//! `--iops` and `--bps` of `serve`: limits on the operations and bytes per second of its disks, as a throttle group.

use clap::Args;

use crate::{
    ThrottleGroupOptions,
    object::read_throttle_group,
    tree::{Object, Value},
};

/// Id of the group.
const GROUP_ID: &str = "limits";

/// The options; each may be given once for reads and once for writes.
#[derive(Args)]
pub(super) struct RateArgs {
    /// Most requests per second, such as 2000, or of one direction: read:1500, write:500
    ///
    /// For all disks together. A burst may follow: 2000,max=20000,length=30 lets 20000 per second pass for up to 30 seconds,
    /// after which they are 2000 again [default length: 1]. Once for reads and once for writes, or once for both.
    #[arg(long, value_name = "[read:|write:]N[,max=N][,length=S]", value_parser = parse_rate, help_heading = "Limits")]
    iops: Vec<RateArg>,

    /// Most bytes per second, such as 100M, or of one direction: read:100M, write:50M; bursts as for --iops
    #[arg(long, value_name = "[read:|write:]SIZE[,max=SIZE][,length=S]", value_parser = parse_rate, help_heading = "Limits")]
    bps: Vec<RateArg>,
}

/// A value of `--iops` or `--bps`. Its numbers are still text: the throttle group checks them.
#[derive(Clone, Debug, PartialEq, Eq)]
struct RateArg {
    /// The end of its key: `total`, `read` or `write`.
    direction: &'static str,
    rate: String,
    max: Option<String>,
    length: Option<String>,
}

/// Splits a value into its parts.
fn parse_rate(text: &str) -> Result<RateArg, String> {
    let (direction, rest) = match text.split_once(':') {
        None => ("total", text),
        Some(("read", rest)) => ("read", rest),
        Some(("write", rest)) => ("write", rest),
        Some((other, _)) => {
            let other = crate::error::excerpt(other);
            return Err(format!(
                "'{other}' is no direction: expected read: or write:"
            ));
        }
    };
    let mut parts = rest.split(',');
    let mut arg = RateArg {
        direction,
        rate: parts.next().unwrap_or_default().to_owned(),
        max: None,
        length: None,
    };
    for part in parts {
        let (part, value) = match part.split_once('=') {
            Some(("max", value)) => (&mut arg.max, value),
            Some(("length", value)) => (&mut arg.length, value),
            _ => {
                let part = crate::error::excerpt(part);
                return Err(format!("'{part}' is unknown: expected max=… or length=…"));
            }
        };
        if part.replace(value.to_owned()).is_some() {
            return Err("max and length can be given once".to_owned());
        }
    }
    Ok(arg)
}

impl RateArg {
    /// Adds the values that are given to the object of the group; `key` is that of the rate.
    fn add_to(&self, object: &mut Object, key: &str) {
        let values = [
            ("", Some(&self.rate)),
            ("-max", self.max.as_ref()),
            ("-max-length", self.length.as_ref()),
        ];
        for (suffix, value) in values {
            if let Some(value) = value {
                object.push_dotted_key(&format!("{key}{suffix}"), Value::Text(value.clone()));
            }
        }
    }
}

impl RateArgs {
    /// The throttle group with these limits; `None` if there are none.
    pub fn to_group(&self) -> Result<Option<ThrottleGroupOptions>, String> {
        if self.iops.is_empty() && self.bps.is_empty() {
            return Ok(None);
        }
        let mut object = Object::default();
        object.push("id".to_owned(), Value::Text(GROUP_ID.to_owned()));
        for (option, args) in [("iops", &self.iops), ("bps", &self.bps)] {
            for (index, arg) in args.iter().enumerate() {
                let direction = arg.direction;
                if args[..index]
                    .iter()
                    .any(|other| other.direction == direction)
                {
                    return Err(format!("--{option} is given twice for '{direction}'"));
                }
                arg.add_to(&mut object, &format!("limits.{option}-{direction}"));
            }
        }
        let group = read_throttle_group(object, None);
        // The keys in the text are those of the group.
        let group = group.map_err(|problem| format!("--iops, --bps: {problem}"))?;
        Ok(Some(group))
    }
}
