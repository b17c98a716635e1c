// Tables of vmath.h: piecewise polynomials in t = u - centre, one column per segment. Row 0 holds the centres, row 1 + k the coefficients
// of t^k. Where a width is given, segment i covers [(i - 1/2) width, (i + 1/2) width], the first one [0, width/2].
//
// How they were made: minimax fit of the relative error by linear programming (mpmath, 40 digits), coefficients rounded to float32 from the
// lowest power up with the others refitted after each rounding; a centre is a float near the middle of its segment at which the function is
// very nearly a float, so that the constant term has almost no rounding error (S. Gal, "An accurate elementary mathematical library for the
// IEEE floating point standard", ACM TOMS 17 (1991)). The last segment of erf and gelu is shifted up by 0.3 x 2^-24, so that u f(u)
// reaches 1 and a min() saturates there exactly.
#ifndef RML_VMATH_TABLES_H
#define RML_VMATH_TABLES_H

// tanh(u) for u in [0, 9.3]. Column i is for u + 0.625 with i in bits 21 to 24: segments of 1/8 at 0 (column 9), then of 1/4, 1/2, and 1
// from 3.375 on, as the poles at +-i pi/2 recede. At 0 the terms of degree 0 and 1 are u itself; in the last segment the sum rounds to 1
// without a min(). Approximation error 0.78 ULP.
static const float tanh_table[7][16] __attribute__((aligned(64), unused)) = {
    {0x1.a037e8p+0f, 0x1.105bd8p+1f, 0x1.501f78p+1f, 0x1.9050dp+1f, 0x1.ef981p+1f, 0x1.379ffp+2f, 0x1.785498p+2f, 0x1.b7d858p+2f,
     0x1.0a4fccp+3f, 0x0p+0f, 0x1.7ff11ap-3f, 0x1.400624p-2f, 0x1.fff858p-2f, 0x1.8012d8p-1f, 0x1.ff9cf8p-1f, 0x1.3fac18p+0f},
    {0x1.d9d70ap-1f, 0x1.f1adap-1f, 0x1.faaa3p-1f, 0x1.fe0966p-1f, 0x1.ff8e6ap-1f, 0x1.fff08ap-1f, 0x1.fffdf4p-1f, 0x1.ffffb8p-1f,
     0x1.fffffcp-1f, 0x0p+0f, 0x1.7b8196p-3f, 0x1.35ff1ep-2f, 0x1.d92f38p-2f, 0x1.453d7cp-1f, 0x1.85c60ep-1f, 0x1.b2232p-1f},
    {0x1.25e742p-3f, 0x1.c3e314p-5f, 0x1.53ac98p-6f, 0x1.f5a366p-8f, 0x1.c627dap-10f, 0x1.eeba4ap-13f, 0x1.060254p-15f, 0x1.20019ep-18f,
     0x1.fa904cp-23f, 0x1p+0f, 0x1.ee6b38p-1f, 0x1.d113c4p-1f, 0x1.92ac12p-1f, 0x1.31656ap-1f, 0x1.ae8c8p-2f, 0x1.1fc4e2p-2f},
    {-0x1.10034ep-3f, -0x1.b73d44p-5f, -0x1.501df8p-6f, -0x1.f3ae6p-8f, -0x1.c53644p-10f, -0x1.ee0f0cp-13f, -0x1.05ac8cp-15f,
     -0x1.1fa578p-18f, -0x1.debba4p-23f, 0x1.4ec824p-22f, -0x1.6e796p-3f, -0x1.199614p-2f, -0x1.7423f2p-2f, -0x1.83ff14p-2f,
     -0x1.47c4ccp-2f, -0x1.e8041p-3f},
    {0x1.339224p-4f, 0x1.14568cp-5f, 0x1.b6cb1cp-7f, 0x1.4a8c52p-8f, 0x1.2db2d6p-10f, 0x1.497592p-13f, 0x1.5cafa6p-16f, 0x1.7f9704p-19f,
     0x1.535bcp-23f, -0x1.555b2ep-2f, -0x1.27a67cp-2f, -0x1.c199aap-3f, -0x1.820d92p-4f, 0x1.56f45cp-5f, 0x1.a8044ap-4f, 0x1.bbe8cp-4f},
    {-0x1.972822p-6f, -0x1.ea51ecp-7f, -0x1.a7ee8p-8f, -0x1.48ed68p-9f, -0x1.3ad97p-11f, -0x1.591182p-14f, -0x1.6dcc44p-17f,
     -0x1.922838p-20f, -0x1.bc9fcp-24f, 0x1.efd5f6p-12f, 0x1.ce4d56p-4f, 0x1.431c4ep-3f, 0x1.4f2984p-3f, 0x1.984fbap-4f, 0x1.cf8836p-6f,
     -0x1.8dca06p-7f},
    {0x1.271a46p-10f, 0x1.23ade6p-8f, 0x1.353ea8p-9f, 0x1.ffa486p-11f, 0x1.f050fep-13f, 0x1.1061a2p-15f, 0x1.27729p-18f, 0x1.3ff454p-21f,
     0x1.2838c2p-25f, 0x1.0a35d2p-3f, 0x1.879516p-4f, 0x1.6f0e22p-5f, -0x1.9a731cp-6f, -0x1.04484ap-4f, -0x1.7b1648p-5f, -0x1.3de7dep-6f},
};

// erf(u)/u, width 0.2578125; approximation error 0.064 x 2^-24.
static const float erf_table[7][16] __attribute__((aligned(64), unused)) = {
    {0x1.03d2d2p-4f, 0x1.074728p-2f, 0x1.0869c4p-1f, 0x1.8acd56p-1f, 0x1.088dp+0f, 0x1.4a41a4p+0f, 0x1.8c038cp+0f, 0x1.ce5fccp+0f,
     0x1.07e59ap+1f, 0x1.2910bp+1f, 0x1.49de14p+1f, 0x1.6aeb4ep+1f, 0x1.8c3e0cp+1f, 0x1.ad128cp+1f, 0x1.ce0cacp+1f, 0x1.eefab8p+1f},
    {0x1.207a64p+0f, 0x1.1a9fdp+0f, 0x1.091d9p+0f, 0x1.e1103ap-1f, 0x1.a828e8p-1f, 0x1.71db5ep-1f, 0x1.417b56p-1f, 0x1.1875aap-1f,
     0x1.eeea82p-2f, 0x1.b8c4bap-2f, 0x1.8d3db2p-2f, 0x1.69236cp-2f, 0x1.4ac892p-2f, 0x1.317a16p-2f, 0x1.1bacd6p-2f, 0x1.08cd8ep-2f},
    {-0x1.85f6aap-5f, -0x1.7cc1ep-3f, -0x1.53d1a8p-2f, -0x1.a4e75cp-2f, -0x1.b49428p-2f, -0x1.93d15cp-2f, -0x1.5b66bap-2f,
     -0x1.1e0e44p-2f, -0x1.d0207cp-3f, -0x1.77474ep-3f, -0x1.331db8p-3f, -0x1.fcf634p-4f, -0x1.ab50bp-4f, -0x1.6c7faep-4f,
     -0x1.3a56e4p-4f, -0x1.11e882p-4f},
    {-0x1.7e5eccp-2f, -0x1.551562p-2f, -0x1.c5e94p-3f, -0x1.6ee1dap-4f, 0x1.94eaa4p-6f, 0x1.7907c4p-4f, 0x1.dc10c6p-4f, 0x1.c87a22p-4f,
     0x1.805ap-4f, 0x1.2e3cep-4f, 0x1.d09f56p-5f, 0x1.6408e8p-5f, 0x1.13703ap-5f, 0x1.b2b3cap-6f, 0x1.5c47eap-6f, 0x1.1b523p-6f},
    {0x1.d2dcb8p-6f, 0x1.b73ac2p-4f, 0x1.59e34p-3f, 0x1.5628fap-3f, 0x1.e416eap-4f, 0x1.d4717ep-5f, 0x1.25a5fp-7f, -0x1.20f7eap-6f,
     -0x1.aa10b2p-6f, -0x1.92153ep-6f, -0x1.424122p-6f, -0x1.e12a1p-7f, -0x1.5eefe4p-7f, -0x1.025472p-7f, -0x1.819698p-8f,
     -0x1.24f88p-8f},
    {0x1.c6f6fep-4f, 0x1.65b782p-4f, 0x1.cf3764p-6f, -0x1.d19164p-6f, -0x1.dc2bacp-5f, -0x1.c95622p-5f, -0x1.2accf6p-5f, -0x1.015c6ap-6f,
     -0x1.239e22p-9f, 0x1.f5b028p-9f, 0x1.4d7a4p-8f, 0x1.1f3636p-8f, 0x1.aa3476p-9f, 0x1.2e391cp-9f, 0x1.a93ap-10f, 0x1.2eec76p-10f},
    {-0x1.538d8p-7f, -0x1.2b2c06p-5f, -0x1.97709cp-5f, -0x1.22b55cp-5f, -0x1.340a46p-7f, 0x1.612564p-7f, 0x1.1bf7b2p-6f, 0x1.c52f32p-7f,
     0x1.e1c854p-8f, 0x1.377788p-9f, -0x1.950efcp-15f, -0x1.a67ffp-11f, -0x1.ac242ap-11f, -0x1.444614p-11f, -0x1.b5bb6cp-12f,
     -0x1.4ddf5cp-12f},
};

// erf(u/sqrt 2)/u, width 0.375; approximation error 0.069 x 2^-24.
static const float gelu_table[7][16] __attribute__((aligned(64), unused)) = {
    {0x1.734a24p-4f, 0x1.7d9b9p-2f, 0x1.7e8606p-1f, 0x1.1f691ap+0f, 0x1.80a176p+0f, 0x1.e0f176p+0f, 0x1.200bacp+1f, 0x1.50782ep+1f,
     0x1.7fcb0ap+1f, 0x1.b012bep+1f, 0x1.e065ap+1f, 0x1.07dad4p+2f, 0x1.203d68p+2f, 0x1.38297p+2f, 0x1.4fc69ep+2f, 0x1.683adcp+2f},
    {0x1.97f548p-1f, 0x1.8f4146p-1f, 0x1.757e72p-1f, 0x1.50c23ep-1f, 0x1.27755cp-1f, 0x1.0019d4p-1f, 0x1.bbec94p-2f, 0x1.823634p-2f,
     0x1.549724p-2f, 0x1.2f21eep-2f, 0x1.10cb1ap-2f, 0x1.f0bd4ep-3f, 0x1.c6bab6p-3f, 0x1.a3e26p-3f, 0x1.865b08p-3f, 0x1.6bdb44p-3f},
    {-0x1.8a05d2p-6f, -0x1.85783ap-4f, -0x1.5920f6p-3f, -0x1.a8d0dap-3f, -0x1.b2cfbp-3f, -0x1.8c56ep-3f, -0x1.50cfdap-3f, -0x1.12359p-3f,
     -0x1.ba32b4p-4f, -0x1.63f57ap-4f, -0x1.21fa7ap-4f, -0x1.e1a0f6p-5f, -0x1.93cf7p-5f, -0x1.585528p-5f, -0x1.299c6cp-5f,
     -0x1.0293bep-5f},
    {-0x1.0e55d8p-3f, -0x1.df596cp-4f, -0x1.383aa2p-4f, -0x1.c54906p-6f, 0x1.91fe18p-7f, 0x1.1c3fcp-5f, 0x1.52e116p-5f, 0x1.3a062ep-5f,
     0x1.027a12p-5f, 0x1.8fe064p-6f, 0x1.2f5856p-6f, 0x1.d0a086p-7f, 0x1.6620f2p-7f, 0x1.1a4b24p-7f, 0x1.c5c712p-8f, 0x1.6f840ap-8f},
    {0x1.d7afa6p-8f, 0x1.c060cap-6f, 0x1.5c7b86p-5f, 0x1.506cf6p-5f, 0x1.c80094p-6f, 0x1.8f6bbep-7f, 0x1.73cc5p-11f, -0x1.50c1b4p-8f,
     -0x1.ae5f74p-8f, -0x1.7fd19p-8f, -0x1.28c198p-8f, -0x1.b504c8p-9f, -0x1.3b24f6p-9f, -0x1.cde7ccp-10f, -0x1.59c0b2p-10f,
     -0x1.051d34p-10f},
    {0x1.419488p-6f, 0x1.f2f2ccp-7f, 0x1.25840ep-8f, -0x1.76c3e2p-8f, -0x1.5712cap-7f, -0x1.36581p-7f, -0x1.7a5c2ap-8f, -0x1.1c55b6p-9f,
     -0x1.963aep-15f, 0x1.9e7c92p-11f, 0x1.ce5d3p-11f, 0x1.7635d8p-11f, 0x1.0c41f4p-11f, 0x1.765fbp-12f, 0x1.070622p-12f,
     0x1.735f58p-13f},
    {-0x1.55a5acp-10f, -0x1.3124e4p-8f, -0x1.957acap-8f, -0x1.123838p-8f, -0x1.a86214p-11f, 0x1.997b88p-10f, 0x1.19ca2ep-9f,
     0x1.9a2f88p-10f, 0x1.88005cp-11f, 0x1.9a4a8ep-13f, -0x1.b8d63cp-15f, -0x1.cb3cbcp-14f, -0x1.8d3508p-14f, -0x1.20d414p-14f,
     -0x1.9a742cp-15f, -0x1.2213a8p-15f},
};

// exp(u^2/2) (1 - Phi(u)), the ratio of Mills with the normal distribution function Phi, width 0.46875; approximation error 0.034 x 2^-24.
static const float mills_table[8][32] __attribute__((aligned(64), unused)) = {
    {0x1.e2e3bcp-4f, 0x1.e16d92p-2f, 0x1.e015dp-1f, 0x1.6724dp+0f, 0x1.e0465ap+0f, 0x1.2c7844p+1f, 0x1.677262p+1f, 0x1.a38546p+1f,
     0x1.dfbf2ep+1f, 0x1.0dfe28p+2f, 0x1.2c3608p+2f, 0x1.4a01ecp+2f, 0x1.67d2ecp+2f, 0x1.863eb6p+2f, 0x1.a3cf76p+2f, 0x1.c1c722p+2f,
     0x1.dfbefep+2f, 0x1.fe1632p+2f, 0x1.0e21cap+3f, 0x1.1cf5dcp+3f, 0x1.2c02acp+3f, 0x1.3b0688p+3f, 0x1.49fe46p+3f, 0x1.58fb16p+3f,
     0x1.68197ap+3f, 0x1.76e8cp+3f, 0x1.85ed6ap+3f, 0x1.94fc56p+3f, 0x1.a41456p+3f, 0x1.b31cd2p+3f, 0x1.c1db36p+3f, 0x1.d1106p+3f},
    {0x1.d32f7ap-2f, 0x1.6cf8c8p-2f, 0x1.14e0a6p-2f, 0x1.b817cp-3f, 0x1.68e4b8p-3f, 0x1.306144p-3f, 0x1.07198ep-3f, 0x1.cd5174p-4f,
     0x1.99f418p-4f, 0x1.707e68p-4f, 0x1.4e4e1p-4f, 0x1.322052p-4f, 0x1.1a34fcp-4f, 0x1.054b4p-4f, 0x1.e75f9ap-5f, 0x1.c822eep-5f,
     0x1.ac9ab8p-5f, 0x1.93e092p-5f, 0x1.7ded34p-5f, 0x1.6a8952p-5f, 0x1.58c054p-5f, 0x1.48a65p-5f, 0x1.3a044cp-5f, 0x1.2c9acp-5f,
     0x1.202df4p-5f, 0x1.14f586p-5f, 0x1.0a6fp-5f, 0x1.00a632p-5f, 0x1.ef1128p-6f, 0x1.de255p-6f, 0x1.cea1d2p-6f, 0x1.bfa56ep-6f},
    {-0x1.617064p-2f, -0x1.d9dad6p-3f, -0x1.29cbd8p-3f, -0x1.8f402p-4f, -0x1.17f14p-4f, -0x1.9a1acap-5f, -0x1.38cf78p-5f, -0x1.e86162p-6f,
     -0x1.863636p-6f, -0x1.3e1a9p-6f, -0x1.07a49ap-6f, -0x1.bc8ba6p-7f, -0x1.7b7048p-7f, -0x1.4675b8p-7f, -0x1.1cc368p-7f,
     -0x1.f4126ap-8f, -0x1.ba6c84p-8f, -0x1.8987eep-8f, -0x1.606f5ep-8f, -0x1.3df3d2p-8f, -0x1.1fd5eap-8f, -0x1.05d314p-8f,
     -0x1.de73b8p-9f, -0x1.b6c5d6p-9f, -0x1.938326p-9f, -0x1.74e9ap-9f, -0x1.594894p-9f, -0x1.408942p-9f, -0x1.2a4b4cp-9f,
     -0x1.165acep-9f, -0x1.04abc8p-9f, -0x1.e843bcp-10f},
    {0x1.a9847ap-3f, 0x1.fb29d2p-4f, 0x1.128582p-4f, 0x1.40132ep-5f, 0x1.893052p-6f, 0x1.fda9eep-7f, 0x1.5bf19ap-7f, 0x1.e93518p-8f,
     0x1.62955ep-8f, 0x1.08057ap-8f, 0x1.921872p-9f, 0x1.398a4cp-9f, 0x1.f16e44p-10f, 0x1.8ef31p-10f, 0x1.46502p-10f, 0x1.0d649ap-10f,
     0x1.c1a52ep-11f, 0x1.7a2396p-11f, 0x1.41276ep-11f, 0x1.13af12p-11f, 0x1.dba8eep-12f, 0x1.9d3a2cp-12f, 0x1.6954d8p-12f,
     0x1.3da9ccp-12f, 0x1.186a74p-12f, 0x1.f2ac3p-13f, 0x1.bc9fc8p-13f, 0x1.8df548p-13f, 0x1.657af8p-13f, 0x1.426b18p-13f,
     0x1.24543ep-13f, 0x1.091314p-13f},
    {-0x1.b5cbcp-4f, -0x1.d8d2bcp-5f, -0x1.c2e67ep-6f, -0x1.d1efap-7f, -0x1.fd7d14p-8f, -0x1.2800dep-8f, -0x1.6d89acp-9f, -0x1.d2d77p-10f,
     -0x1.352706p-10f, -0x1.a6ec34p-11f, -0x1.294c58p-11f, -0x1.ae8e64p-12f, -0x1.3e693cp-12f, -0x1.dd7a5p-13f, -0x1.6f04fcp-13f,
     -0x1.1d7accp-13f, -0x1.c2328ep-14f, -0x1.668236p-14f, -0x1.210d3ap-14f, -0x1.d8f0d8p-15f, -0x1.853208p-15f, -0x1.430d54p-15f,
     -0x1.0e973p-15f, -0x1.c8799cp-16f, -0x1.82d172p-16f, -0x1.4b2b06p-16f, -0x1.1c85c8p-16f, -0x1.eb3a52p-17f, -0x1.aa55c6p-17f,
     -0x1.73c88p-17f, -0x1.468432p-17f, -0x1.1e7dfcp-17f},
    {0x1.8fb3c4p-5f, 0x1.8bff9p-6f, 0x1.51a2ecp-7f, 0x1.394832p-8f, 0x1.3474f2p-9f, 0x1.447132p-10f, 0x1.6d480ap-11f, 0x1.aaada4p-12f,
     0x1.03a89cp-12f, 0x1.47ea1p-13f, 0x1.ab7dd4p-14f, 0x1.203c4cp-14f, 0x1.8eb384p-15f, 0x1.1829d4p-15f, 0x1.95bc28p-16f,
     0x1.29be8cp-16f, 0x1.bc0e4cp-17f, 0x1.4f7ba6p-17f, 0x1.0136bp-17f, 0x1.90e644p-18f, 0x1.3b335ep-18f, 0x1.f47c4ep-19f,
     0x1.9143e8p-19f, 0x1.43e18ep-19f, 0x1.08e678p-19f, 0x1.b6420cp-20f, 0x1.6c3ae8p-20f, 0x1.2c8414p-20f, 0x1.f7dc78p-21f,
     0x1.a95e9ap-21f, 0x1.691a34p-21f, 0x1.341dcap-21f},
    {-0x1.4efd0ap-6f, -0x1.334128p-7f, -0x1.d81e46p-9f, -0x1.8e158p-10f, -0x1.620a1p-11f, -0x1.5606fep-12f, -0x1.5e3f92p-13f,
     -0x1.7b83a4p-14f, -0x1.a408c4p-15f, -0x1.f8f884p-16f, -0x1.38bc78p-16f, -0x1.73906p-17f, -0x1.020a62p-17f, -0x1.41ff88p-18f,
     -0x1.d5eeep-19f, -0x1.2eaca2p-19f, -0x1.d10856p-20f, -0x1.35abaep-20f, -0x1.1f1cb4p-20f, -0x1.ae435cp-22f, -0x1.19e6fcp-22f,
     -0x1.c21d32p-22f, -0x1.ff44eap-23f, -0x1.05075ap-23f, -0x1.1973fcp-22f, -0x1.3e66ep-23f, -0x1.41ece4p-24f, -0x1.4777a4p-24f,
     0x1.591bb4p-25f, 0x1.61281ep-25f, 0x1.0b92d8p-24f, -0x1.bdc0ecp-25f},
    {0x1.ff5a52p-8f, 0x1.b51fc4p-9f, 0x1.31ee62p-10f, 0x1.da4ac2p-12f, 0x1.7fa0dap-13f, 0x1.5362e6p-14f, 0x1.3fd8eap-15f, 0x1.4695bcp-16f,
     0x1.44f61ep-17f, 0x1.6da3acp-18f, 0x1.64edfap-19f, 0x1.002d36p-19f, 0x1.4c9fe8p-20f, 0x1.667cc2p-21f, 0x1.cc33dep-22f,
     0x1.3ca99cp-22f, 0x1.698f1ap-22f, 0x1.3d316ep-23f, 0x1.fa0f46p-25f, 0x1.4db0e4p-24f, 0x1.315a68p-25f, 0x1.a886p-25f, 0x1.2d2646p-24f,
     0x1.0b1cdcp-23f, 0x1.c055bap-27f, -0x1.349416p-25f, -0x1.87622ap-24f, 0x1.65e808p-25f, 0x1.63c1e8p-25f, 0x1.1b50c6p-25f,
     0x1.8c198ep-30f, 0x1.7a7542p-28f},
};

// Logarithms: c near 1/m for the m of a segment of log_split, and -log(c). c has 12 bits, so that the baseline can multiply by it exactly,
// and a logarithm that is very nearly a float; it is 1 in the segment around 1.
static const float log_table[2][16] __attribute__((aligned(64), unused)) = {
    {0x1.774p+0f, 0x1.674p+0f, 0x1.568p+0f, 0x1.4bp+0f, 0x1.408p+0f, 0x1.336p+0f, 0x1.29cp+0f, 0x1.1e6p+0f, 0x1.1p+0f, 0x1.07ep+0f, 0x1p+0f,
     0x1.e64p-1f, 0x1.cb2p-1f, 0x1.b14p-1f, 0x1.9cep-1f, 0x1.882p-1f},
    {-0x1.8797cep-2f, -0x1.5af928p-2f, -0x1.2a149ap-2f, -0x1.071b86p-2f, -0x1.cc320cp-3f, -0x1.768f96p-3f, -0x1.3567bcp-3f, -0x1.cb4344p-4f,
     -0x1.f0a30cp-5f, -0x1.f06748p-6f, 0x0p+0f, 0x1.a6b8acp-5f, 0x1.be7902p-4f, 0x1.56092ep-3f, 0x1.b8b028p-3f, 0x1.112554p-2f},
};

#endif
